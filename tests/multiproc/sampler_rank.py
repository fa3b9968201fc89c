"""One rank of a plain DDP loop over the sampler."""

from __future__ import annotations

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


def trained(rank: int, config_file: str, state_file: str, stop: int | None) -> list[tuple[int, int, int, int, float]]:
    """Step, rank, samples, work hash and loss of every step.

    Args:
        rank: of the default group.
        config_file: of the run that does the same.
        state_file: where it exists, the loop goes on from there.
        stop: after so many steps the loop ends, and leaves its state in the file.
    """
    config = load_config(Path(config_file))
    train = config.train
    workload = build_workload(config)
    data = workload.train
    sampler = PlannedBatchSampler(
        data.lengths,
        dist.get_world_size(),
        rank,
        train.global_batch,
        policy=config.schedule.policy_name,
        seed=train.seed,
    )
    loader = DataLoader(np.arange(len(data.lengths)), batch_sampler=sampler, collate_fn=np.array)
    model = DistributedDataParallel(workload.build_model(train.seed))
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay, fused=True
    )
    step, state, done = 0, Path(state_file), []
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
            done.append((step, rank, len(ids), work_hash(ids, data.lengths[ids]), loss.item()))
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
                return done
            if step == total:
                break
    return done
