"""What warm ranks do while one of them takes long over its data, or ends in it."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from warm import PATIENCE_S

from dynbench.config.layers import load_config
from dynbench.engine.rank import worker
from dynbench.engine.rank.rank_process import RankContext

TIMEOUT_S = 1.0


def prepared(rank: int, folder: str, local_ranks: tuple[int, int], slow_rank: int, what: str) -> object:
    """The data, where collectives time out after a second and the slow rank takes longer, dies or fails."""

    def prepare(config: object) -> str:
        if rank == slow_rank:
            time.sleep(2.5 * TIMEOUT_S)
            if what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "fails":
                raise OSError("planted")
        Path(folder, str(rank)).touch()
        return "data"

    _time_out_after(TIMEOUT_S)
    with patch.object(worker, "build_workload", prepare):
        found = worker.load_workload(
            load_config(None), RankContext(rank, local_ranks[rank], len(local_ranks), torch.device("cpu"))
        )
    assert all(Path(folder, str(each)).exists() for each in range(2)), "one went on while the other prepared"
    _time_out_after(PATIENCE_S)
    return found


def _time_out_after(seconds: float) -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), dist.group.WORLD)
