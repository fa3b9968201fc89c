"""What warm ranks do with models that differ between them."""

from __future__ import annotations

import torch
from strategy_jobs import CPU, named
from torch import nn

from dynbench.config.layers import load_config
from dynbench.engine.rank.loop import build_strategy
from dynbench.errors import UsageError

FAULTS = ("number", "shape", "dtype", "buffer")


def other_model(rank: int, fault: str) -> nn.Module:
    """A model that is another one on rank 1."""
    layers = [
        nn.Linear(2, 3 if fault == "shape" and rank else 2),
        nn.BatchNorm1d(3 if fault == "shape" and rank else 2),
    ]
    if fault == "number" and rank:
        layers.append(nn.Linear(2, 2))
    if fault == "buffer" and rank:
        layers[1].running_mean = torch.zeros(3)
    return nn.Sequential(*layers).to(torch.float64 if fault == "dtype" and rank else torch.float32)


def refusals(rank: int, sync: str) -> dict[str, str]:
    """By fault, what a strategy says of such models when it takes them up; empty where it says nothing."""
    said = dict.fromkeys(FAULTS, "")
    for fault in FAULTS:
        strategy = build_strategy(named(load_config(None, []), sync, "none"), CPU)
        try:
            strategy.wrap(other_model(rank, fault), CPU)
        except UsageError as error:
            said[fault] = error.message
        strategy.wire.close()
    return said
