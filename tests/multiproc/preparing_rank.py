"""One of two ranks that load their data: `preparing_rank.py RANK LOCAL_RANK RENDEZVOUS_FILE SLOW_RANK WHAT_IT_DOES`.

Collectives time out after a second; the slow rank takes longer over its data, or ends in it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dynbench.config.layers import load_config
from dynbench.engine.rank import worker
from dynbench.engine.rank.rank_process import RankContext

TIMEOUT_S = 1.0


def main(rank: int, local_rank: int, file: str, slow_rank: int, what: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_S), dist.group.WORLD)

    def prepare(config: object) -> str:
        if rank == slow_rank:
            time.sleep(2.5 * TIMEOUT_S)
            if what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "fails":
                raise OSError("planted")
        Path(f"{file}.{rank}").touch()
        return "data"

    worker.build_workload = prepare
    print(worker.load_workload(load_config(None), RankContext(rank, local_rank, 2, torch.device("cpu"))))
    assert all(Path(f"{file}.{each}").exists() for each in range(2)), "one went on while the other prepared"


if __name__ == "__main__":
    code = 0
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # what torch's threads do while the interpreter goes down is not under test
