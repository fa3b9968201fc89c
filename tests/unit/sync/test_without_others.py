"""Strategies on a wire that sends nothing: where their tensors are, and what a rank makes of its own part alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynbench.config.layers import load_config
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.plugins import STRATEGIES
from dynbench.sync.sharded import Zero1
from dynbench.wire.base import NullWire

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if entry.servers])
def test_everything_that_a_worker_pushes_is_on_its_device(name: str) -> None:
    """Back ends of GPUs know no other tensors; buffers of batch norm go with how many rows they are of."""
    sent: list[Tensor] = []
    wire = NullWire(0, 3)
    assert wire.group is not None
    wire.rank = 1
    with patch.object(wire, "send", side_effect=lambda tensor, _: sent.append(tensor) or wire.broadcast(tensor, 0)):
        strategy = STRATEGIES[name].load()(load_config(None, [f"sync.name={name}"]).sync, wire)
        strategy.wrap(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.device("meta"))
        strategy._push_buffers()
    assert sent
    assert {tensor.device.type for tensor in sent} == {"meta"}


def test_a_rank_that_receives_nothing_keeps_the_parameters_of_the_others() -> None:
    """Under zero1, whose ranks step a part each."""
    wire = NullWire(0, 2)
    with closing(Zero1(None, wire)) as strategy:
        module = strategy.wrap(nn.Linear(6, 5), CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda given: torch.optim.SGD(given, lr=1e-6))
        before = [parameter.detach().clone() for parameter in module.parameters()]
        module(torch.ones(1, 6)).sum().backward()
        strategy.finish()
        strategy.step(optimizer, Precision("fp32", CPU))
        strategy.drain()
        assert 0 < _moved(before, list(module.parameters())) < 1e-5


def _moved(before: list[Tensor], after: list[nn.Parameter]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if entry.reads("inner_steps")])
def test_a_registry_says_what_is_held_beside_gradients_and_the_optimizers_state(name: str) -> None:
    overlaps = ["sync.overlap_steps=1"] if STRATEGIES[name].reads("overlap_steps") else []
    settings = load_config(None, [f"sync.name={name}", "sync.inner_steps=2", *overlaps]).sync
    with closing(STRATEGIES[name].load()(settings, NullWire(0, 1))) as strategy:
        module = strategy.wrap(nn.Linear(6, 5), CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda given: torch.optim.SGD(given, lr=0.1))
        for _ in range(4):
            module(torch.ones(1, 6)).sum().backward()
            strategy.finish()
            strategy.step(optimizer, Precision("fp32", CPU))
        kept = [each for one in strategy._fragments for each in (one.anchor, one.momentum, one.change)]
        held = [each for each in kept if each is not None]
        beside = STRATEGIES[name].whole - 2 + bool(overlaps)
        assert sum(each.numel() for each in held) == beside * 35
