"""What warm ranks do with a strategy: train models beside one process, and take single steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from batches import batch_of
from strategy_jobs import CPU, configured, known, named
from sync_models import MODELS, OneWeight
from torch import Tensor, nn
from torch.optim import Optimizer
from toys import STRATEGIES as TOYS
from toys import Toy

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.rank.exchange import max_over_ranks
from dynbench.engine.rank.loop import build_strategy, session
from dynbench.engine.rank.optimizer_step import Clipper, Precision
from dynbench.engine.rank.toy_check import Case, Difference, check_strategy, toy_model
from dynbench.errors import UsageError
from dynbench.plugins import STRATEGIES
from dynbench.sync import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP, ShardedOptimizer
from dynbench.sync.base import Strategy
from dynbench.wire.base import Wire


def of_tokens(module: nn.Module) -> Tensor:
    """A loss of any of the models."""
    return module(torch.arange(12).view(2, 6)).sum()


@dataclass
class Steps:
    """Steps of SGD under a strategy; on a rank that serves, it serves."""

    strategy: Strategy
    module: nn.Module
    optimizer: Optimizer
    precision: Precision = field(default_factory=lambda: Precision("fp32", CPU))

    def __call__(self, loss: Callable[[nn.Module], Tensor] = of_tokens) -> Mapping[str, Any]:
        """One step; the strategy's row of it."""
        if self.strategy.ranks.serves(self.strategy.wire.rank):
            self.strategy.serve()
        else:
            self.precision.backward(loss(self.module))
            self.strategy.finish()
        self.strategy.step(self.optimizer, self.precision)
        self.strategy.clear_gradients(self.optimizer)
        return self.strategy.row()


def begun(strategy: Strategy, model: nn.Module, lr: float = 0.1) -> Steps:
    """Steps of a strategy that takes the model up."""
    module = strategy.wrap(model, CPU)
    optimizer = strategy.build_optimizer(module.parameters(), lambda p: torch.optim.SGD(p, lr=lr))
    return Steps(strategy, module, optimizer)


@contextmanager
def stepping(config: Config, model: nn.Module, lr: float = 0.1) -> Iterator[Steps]:
    """Steps of a configured strategy, which is closed afterwards."""
    with known(), session(build_strategy(config, CPU)) as strategy:
        yield begun(strategy, model, lr)


def checked(rank: int, sync: str, model: str, optimizer: Any, *settings: str) -> Difference | None:
    """How far the strategy's weights are from one process's, on the rank that has them; others begin with others."""

    def build() -> nn.Module:
        built = MODELS[model]()
        with torch.no_grad():
            for tensor in (*built.parameters(), *built.buffers()):
                if rank and tensor.is_floating_point():
                    tensor.add_(rank)
        return built

    config = configured(sync, *settings)
    with known():
        return check_strategy(config, Case(optimizer, model=build))


def gathered_late(rank: int, model: str) -> Difference | None:
    """As `checked`, of zero1 whose gathered parameters come when they are waited for, and not before."""
    gather = Wire.gather

    def late(self: Wire, full: Tensor, shard: Tensor, *parts: Any) -> Any:
        if full.dtype == torch.uint8:  # which parameters are used
            return gather(self, full, shard, *parts)
        arrived, future = torch.empty_like(full), Mock()
        under_way = gather(self, arrived, shard, *parts)
        future.wait.side_effect = lambda: full.copy_(under_way.wait())
        return future

    with patch.object(Wire, "gather", late):
        return checked(rank, "zero1", model, "adamw")


FAULTS = ("number", "shape", "dtype", "layout", "buffer number", "buffer shape", "buffer name")


def other_model(rank: int, fault: str) -> nn.Module:
    """A model that is another one on rank 1."""
    other = fault if rank == 1 else None
    layers = [nn.Conv2d(2, 3 if other == "shape" else 2, (2, 3)), *[nn.Linear(2, 2)] * (other == "number")]
    model = nn.Sequential(*layers).to(torch.float64 if other == "dtype" else torch.float32)
    if other == "buffer number" or fault == "buffer shape":
        model.register_buffer("seen", torch.zeros(3 + rank))
    if fault == "buffer name":
        model.register_buffer("seen" if rank else "noted", torch.zeros(3))
    return model.to(memory_format=torch.channels_last) if other == "layout" else model


def refusals(rank: int, sync: str) -> list[str]:
    """Of every fault, the error of a strategy that takes up such models."""
    found = []
    for fault in FAULTS:
        with session(build_strategy(named(load_config(None, []), sync), CPU)) as strategy:
            with pytest.raises(UsageError) as refusal:
                strategy.wrap(other_model(rank, fault), CPU)
            found.append(refusal.value.message)
    return found


def norm_of_one_weight(rank: int, sync: str) -> tuple[float, float]:
    """The norm of its gradient on this rank, and what a clipped step of 1 moved it by where this rank has the state."""
    with stepping(configured(sync), OneWeight().double(), lr=1.0) as steps:
        clipper = Clipper(0.5, steps.strategy.gradient_norm)
        steps.precision = Precision("fp32", CPU, clip=clipper.clip)
        steps(lambda module: module(torch.zeros(2, 6, dtype=torch.long)).sum() * (rank + 1))
        steps.strategy.drain()
        state = steps.strategy.full_state()
        return clipper.row()["grad_norm"], 0.0 if state is None else 1 - float(state["weight"])


def overflowing(rank: int, sync: str) -> list[tuple[bool, bool]]:
    """Steps with a loss scaler, in the second of which the last rank's gradient alone is infinite.

    Returns:
        Of each, whether it was skipped here, and whether the model's state moved; on ranks without that, False.
    """
    found = []
    with stepping(configured(sync), toy_model().float()) as steps:
        strategy = steps.strategy
        steps.precision = Precision("fp16", CPU, None if strategy.equal_gradients else max_over_ranks)
        for step in range(3):
            before = strategy.full_state()
            overflows = step == 1 and rank == strategy.wire.world_size - 1
            steps(lambda module, factor=float("inf") if overflows else 1.0: of_tokens(module) * factor)
            after = strategy.full_state()
            moved = before is not None and any(not torch.equal(before[name], after[name]) for name in before)
            assert after is None or all(bool(tensor.isfinite().all()) for tensor in after.values())
            found.append((steps.precision.take_skipped(), moved))
    return found


def pushed_buffers(rank: int) -> dict[str, float]:
    """What the server has of a running mean after the workers saw three rows of 1 and one row of 5."""
    with stepping(configured("ps"), nn.BatchNorm1d(2, momentum=None).train()) as steps:
        if rank == 1:
            steps.module(torch.ones(3, 2))
        if rank == 2:
            steps.module(torch.full((2, 2), 5.0))
            steps.strategy._rows.fill_(1)
            steps.module.num_batches_tracked.fill_(2)
        state = steps.strategy.full_state()
        names = {"mean": "running_mean", "batches": "num_batches_tracked"}
        return {} if state is None else {key: float(state[name].view(-1)[0]) for key, name in names.items()}


PLAIN = {name: entry.load() for name, entry in STRATEGIES.items() if entry.exact and not entry.servers} | TOYS


def public(rank: int) -> list[tuple[float, list[str] | None]]:
    """Every strategy on plain torch: built from nothing, over the default group.

    Returns:
        Of each, the sum of the state after a step, and the names in what the first rank has without the others.
    """
    toy, found = Toy(), []
    for make in PLAIN.values():
        steps = begun(make(), toy.build_model(0))
        steps(lambda module: toy.loss(module, batch_of(toy, np.arange(rank, 60, 2))))
        assert type(steps.strategy.wire) is Wire
        state = steps.strategy.full_state()
        assert (state is not None) == (rank == 0)
        alone = steps.strategy.state_alone() if rank == 0 else None
        dist.barrier()
        total = 0.0 if state is None else float(sum(tensor.sum() for tensor in state.values()))
        found.append((total, None if alone is None else sorted(alone)))
        steps.strategy.close()
    return found


def killed(rank: int, sync: str, *settings: str) -> None:
    """Steps of a strategy, in the second of which the last rank ends between its forward and its backward pass."""
    strategy = build_strategy(configured(sync, "launch.timeout_s=60", *settings), CPU)
    steps, last = begun(strategy, MODELS["gpt2"]()), strategy.wire.world_size - 1
    for step in range(3):
        steps(lambda module, ends=step == 1 and rank == last: of_tokens(module) + (os._exit(9) if ends else 0))


class Odd(nn.Module):
    """Parameters that are not contiguous, of several types, tied, empty, and frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.weight = self.tied = nn.Parameter(torch.randn(16, 16).div(4).t())
        self.last = nn.Parameter(torch.randn(16, 5).t())
        self.bias = nn.Parameter(torch.randn(5).double())
        self.empty = nn.Parameter(torch.empty(0))
        self.frozen = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.conv(x).flatten(1) @ self.weight.t()) @ self.tied.t()
        return (hidden @ self.last.t()).double() + self.bias


ADAPTERS: dict[str, Callable[[nn.Module], Any]] = {
    **{each.__name__: each for each in (NaiveDDP, FlatDDP, OverlapDDP, BucketedDDP)},
    **{f"buckets of {size} MiB": lambda module, size=size: BucketedDDP(module, size) for size in (0.0001, 0.0016)},
}
"""How a loop of one's own takes up a public class."""


def own_loop(rank: int, adapter: str) -> float:
    """A loop of one's own over halves of the samples: largest difference from one process, which begins as rank 0."""
    torch.manual_seed(rank)
    module = ADAPTERS[adapter](Odd())
    torch.manual_seed(0)
    alone = Odd()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (alone, module)]
    for _ in range(5):
        x = torch.randn(8, 3, 3, 3)
        for model, rows in ((alone, slice(None)), (module, slice(rank * 4, rank * 4 + 4))):
            model.zero_grad()
            model(x[rows]).square().mean().backward()
        module.finish_gradient_synchronization()
        for optimizer in optimizers:
            optimizer.step()
    found = module.module.state_dict()
    pairs = [(tensor, found[name]) for name, tensor in alone.state_dict().items() if tensor.numel()]
    return max(float((ours - wanted).abs().max()) for wanted, ours in pairs)


BuildOptimizer = Callable[[list[dict[str, Any]]], Optimizer]


def grouped() -> tuple[list[nn.Parameter], list[dict[str, Any]]]:
    """Parameters, one of them frozen, in three groups, of which the last is added late."""
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(size).double()) for size in (7, 30, 2, 11, 5)]
    made[2].requires_grad_(False)
    return made, [{"params": made[:2]}, {"params": made[2:4], "lr": 0.05}, {"params": made[4:], "lr": 0.2}]


def optimized(build: BuildOptimizer, state: Any = None) -> tuple[list[list[float]], Any, Optimizer]:
    """The weights, the state and the optimizer after steps with a schedule, a missing gradient and a late group.

    With a state: after a step that goes on from it.
    """
    parameters, groups = grouped()
    optimizer = build(groups[:2] if state is None else groups)
    if state is not None:
        optimizer.load_state_dict(deepcopy(state))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(6) if state is None else (6,):
        if step == 3:
            optimizer.add_param_group(groups[2])
        for number, p in enumerate(parameters):
            if p.requires_grad and (step, number) != (2, 1) and (number < 4 or step >= 3):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step * 9 + number)).double()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return [p.tolist() for p in parameters], optimizer.state_dict(), optimizer


def sharded(rank: int, kind: type[Optimizer], settings: dict[str, float], state: Any = None) -> tuple[Any, ...]:
    """As `optimized`, of an optimizer with divided state, then elements of this rank's part, and its states.

    A state that it goes on from is given to rank 0 alone.
    """
    given = {} if state is not None and rank else state
    weights, state, optimizer = optimized(lambda groups: ShardedOptimizer(groups, kind, **settings), given)
    assert isinstance(optimizer, ShardedOptimizer)
    return weights, state, sum(p.numel() for p in optimizer.owned(rank)), len(optimizer.state)
