"""Strategies on one rank, and on a wire that sends nothing: what a rank makes of its own part alone."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sync_jobs import CPU, begun
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynbench.config.layers import load_config
from dynbench.engine.rank.toy_check import Case, check_strategy, config_of
from dynbench.errors import UsageError
from dynbench.plugins import STRATEGIES
from dynbench.sync import NaiveDDP
from dynbench.sync.sharded import Zero1
from dynbench.sync.synchronised import unused_everywhere
from dynbench.wire.base import NullWire

GPU = torch.device("cuda", 0)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if not entry.servers])
def test_one_rank_trains_what_one_process_trains(name: str) -> None:
    config = config_of(name)
    if name == "diloco":  # whose outer step is another optimizer also on one rank
        plain = config.sync.model_copy(update={"outer_rate": 1.0, "outer_momentum": 0.0})
        config = config.model_copy(update={"sync": plain})
    found = check_strategy(config, Case("adamw", steps=4))
    assert found is not None
    assert found.of_rounding <= 1, found


@pytest.mark.usefixtures("alone")
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


@pytest.mark.usefixtures("alone")
def test_a_rank_that_receives_nothing_keeps_the_parameters_of_the_others() -> None:
    """Under zero1, whose ranks step a part each."""
    with closing(Zero1(None, NullWire(0, 2))) as strategy:
        steps = begun(strategy, nn.Linear(6, 5), lr=1e-6)
        before = [parameter.detach().clone() for parameter in steps.module.parameters()]
        steps(lambda module: module(torch.ones(1, 6)).sum())
        strategy.drain()
        pairs = zip(before, steps.module.parameters(), strict=True)
        assert 0 < max(float((a - b).detach().abs().max()) for a, b in pairs) < 1e-5


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if entry.reads("inner_steps")])
def test_a_registry_says_what_is_in_memory_beside_gradients_and_the_optimizers_state(name: str) -> None:
    overlaps = ["sync.overlap_steps=1"] if STRATEGIES[name].reads("overlap_steps") else []
    settings = load_config(None, [f"sync.name={name}", "sync.inner_steps=2", *overlaps]).sync
    with closing(STRATEGIES[name].load()(settings, NullWire(0, 1))) as strategy:
        steps = begun(strategy, nn.Linear(6, 5))
        for _ in range(4):
            steps(lambda module: module(torch.ones(1, 6)).sum())
        beside = STRATEGIES[name].whole - 2 + bool(overlaps)
        assert sum(each.numel() for each in strategy.buffers()) == beside * 35


class OnGpu(TorchFunctionMode):
    """Tensors of a GPU are on the CPU, and every copy to it is noted: whether the host went on at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[torch.Tensor] = []
        self.went_on: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is torch.Tensor.to and args[1] == GPU:
            self.went_on.append(bool(named.get("non_blocking")) and any(args[0] is each for each in self.pinned))
            return args[0]
        pin = named.pop("pin_memory", False)
        if named.get("device") == GPU:
            named["device"] = "cpu"
        made = func(*args, **named)
        if pin:
            self.pinned.append(made)
        return made


def test_the_host_does_not_wait_for_a_gpu_to_say_what_it_has_used() -> None:
    with OnGpu() as seen:
        assert unused_everywhere((0, 1, 2), 3, NullWire(0, 2), GPU) == frozenset()
    assert seen.went_on == [True]


def test_what_no_rank_has_used() -> None:
    assert unused_everywhere((0, 2), 4, NullWire(0, 2), CPU) == {1, 3}
    assert unused_everywhere((), 0, NullWire(0, 2), CPU) == frozenset()


def test_without_a_process_group_there_is_a_next_step() -> None:
    assert not dist.is_initialized()
    with pytest.raises(UsageError, match=r"init_process_group"):
        NaiveDDP(nn.Linear(2, 2))
