"""One rank of a plain DDP loop: `sampler_rank.py RANK WORLD_SIZE RENDEZVOUS_FILE CONFIG STATE STOP`; prints JSON lines.

With STOP above 0 it ends after so many steps and leaves its state in the file STATE; where STATE exists, it resumes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from dynbench.config.layers import load_config
from dynbench.runs.records import work_hash
from dynbench.sampler import PlannedBatchSampler
from dynbench.workloads.batches import make_micro_batch
from dynbench.workloads.registry import build_workload


def main(rank: int, world_size: int, file: str, config_file: str, state_file: str, stop: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    config = load_config(Path(config_file))
    train = config.train
    workload = build_workload(config)
    data = workload.train
    sampler = PlannedBatchSampler(
        data.lengths, world_size, rank, train.global_batch, policy=config.schedule.policy_name, seed=train.seed
    )
    loader = DataLoader(np.arange(len(data.lengths)), batch_sampler=sampler, collate_fn=np.array)
    model = DistributedDataParallel(workload.build_model(train.seed))
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay, fused=True
    )
    step, state = 0, Path(state_file)
    if state.exists():
        saved = torch.load(state, weights_only=False)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.load_state_dict(saved["sampler"])
        step = saved["step"]
    total = train.warmup_steps + train.steps
    while step < total:
        sampler.set_epoch(step // len(sampler))
        for ids in loader:
            loss = workload.loss(model, make_micro_batch(workload, data, ids, 1).inputs) / len(ids)
            (loss * sampler.weight(ids)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            print(
                json.dumps([step, len(ids), work_hash(ids, data.lengths[ids]), loss.item()]),
                flush=True,
            )
            step += 1
            if step == stop:
                dist.barrier()
                if rank == 0:
                    torch.save(
                        {
                            "model": model.module.state_dict(),
                            "optimizer": optimizer.state_dict(),
                            "sampler": sampler.state_dict(),
                            "step": step,
                        },
                        state,
                    )
                dist.barrier()
                return
            if step == total:
                break
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))
    os._exit(0)  # what torch's threads do while the interpreter goes down is not under test
