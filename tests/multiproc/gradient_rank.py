"""One rank of the gradient test on GPUs: `-m multiproc.gradient_rank RANK WORLD_SIZE RENDEZVOUS_FILE`.

Rank 0 prints a JSON object for each step: whether samples count by their weights, and how far the gradient is from that
of the whole batch in one process.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from strategy_jobs import watched_steps


def main(rank: int, world_size: int, file: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{file}", rank=rank, world_size=world_size)
    for fault in (None, "counts"):
        steps = watched_steps(rank, "ddp", "none", False, fault, device=torch.device("cuda", rank))
        for step in steps if rank == 0 else ():
            print(json.dumps({"weighted": fault is None, "relative_error": step["error"]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    os._exit(0)  # what torch's threads do while the interpreter goes down is not under test
