"""Peaks of torch's own fully_shard beside those of ours, of one model and batch, for the page of `first.py`.

    torchrun --standalone --nproc-per-node 2 tests/gpu/fully_shard.py [--device cpu]

The first rank prints them in a line.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from dynbench.bench.measuring import watch
from dynbench.bench.model_step import VOCABULARY, build_model
from dynbench.sync import FullyShardedDDP
from dynbench.sync.fully_sharded_streams import blocks_of
from dynbench.units import mb
from dynbench.workloads.causal_lm import logits_of

STEPS, BATCH = 3, 4
SHAPES: Mapping[str, tuple[str, int]] = {"cuda": ("medium", 256), "cpu": ("tiny", 16)}
"""Size and context."""
Shard = Callable[[nn.Module, torch.device], tuple[nn.Module, Callable[[], None]]]
"""A sharded module of a whole one, and what ends its gradients' synchronisation."""


def by_torch(model: nn.Module, device: torch.device) -> tuple[nn.Module, Callable[[], None]]:
    """As its tutorial has it: every block, then the whole."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*blocks_of(model), model):
        fully_shard(part, mesh=mesh)
    for part in model.modules():
        if device.type == "cpu" and isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(True)  # gloo does not average
    return model, lambda: None


def by_ours(model: nn.Module, device: torch.device) -> tuple[nn.Module, Callable[[], None]]:
    """The public class."""
    module = FullyShardedDDP(model, device=device)
    return module, module.finish_gradient_synchronization


WAYS: Mapping[str, Shard] = {"torch's fully_shard": by_torch, "FullyShardedDDP": by_ours}


def peak_bytes(shard: Shard, device: torch.device) -> int:
    """The most that sharding the model and some steps of AdamW take on the device, beside what was there before."""
    gc.collect()
    size, context = SHAPES[device.type]
    model = build_model(size, context, torch.device("cpu"))
    drawn = torch.Generator().manual_seed(dist.get_rank())
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, context), generator=drawn).to(device)

    def train() -> None:
        module, finish = shard(model, device)
        optimizer = torch.optim.AdamW(module.parameters())
        for _ in range(STEPS):
            torch.autograd.backward(F.cross_entropy(logits_of(module, tokens).flatten(0, 1), targets.flatten()))
            finish()
            optimizer.step()
            optimizer.zero_grad()

    return watch(train, device)[1].most


def peaks_of(rank: int, device: torch.device) -> dict[str, int]:
    """Those of each on this rank, measured twice: what libraries take once and keep is there the second time."""
    return {way: peak_bytes(shard, device) for _ in range(2) for way, shard in WAYS.items()}


def main() -> None:
    """As one rank of torchrun's."""
    kind = "cpu" if "cpu" in sys.argv else "cuda"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    rank = dist.get_rank()
    peaks = peaks_of(rank, device)
    dist.destroy_process_group()
    if rank == 0:
        print(f"peaks of {STEPS} steps: " + ", ".join(f"{way} {mb(size):,.1f} MB" for way, size in peaks.items()))


if __name__ == "__main__":
    main()
