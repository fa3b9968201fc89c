"""What warm ranks do with a strategy: train models beside one process, take single steps, step apart, and shard."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from batches import batch_of
from strategy_jobs import CPU, UNPADDED, before, configured, known, named, replicated, train_run
from sync_models import MODELS, OneWeight
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from toys import STRATEGIES as TOYS
from toys import TiedModel, Toy

from dynbench.compress.quantised import Fp8, Qsgd
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.planning import ReplicatedPlans
from dynbench.engine.rank.exchange import max_over_ranks
from dynbench.engine.rank.loop import build_strategy, build_wire, session
from dynbench.engine.rank.optimizer_step import Clipper, Precision
from dynbench.engine.rank.toy_check import (
    VOCABULARY,
    Case,
    Difference,
    check_strategy,
    toy_model,
)
from dynbench.errors import UsageError
from dynbench.plugins import STRATEGIES
from dynbench.sync import (
    BucketedDDP,
    FlatDDP,
    FullyShardedDDP,
    NaiveDDP,
    OverlapDDP,
    ShardedOptimizer,
    fully_sharded,
    local_steps,
)
from dynbench.sync.base import Strategy
from dynbench.wire.base import Wire
from dynbench.wire.traffic import Traffic


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


RATE, SCALE, MOMENTUM = 0.1, 0.5, 0.8
"""Of the inner step, and of the outer one."""


def constant(rank: int) -> Callable[[nn.Module], Tensor]:
    """A loss whose gradient is this rank's own constant."""
    return lambda module: sum((p * (rank + 1)).sum() for p in module.parameters())


def streamed(rank: int, overlap: int, own: float, steps: int = 12) -> list[float]:
    """A weight after each step, where an outer step of every fourth one takes `overlap` steps."""
    given = ("inner_steps=4", f"overlap_steps={overlap}", f"own_share={own}", f"outer_rate={SCALE}")
    config = configured("diloco", *(f"sync.{each}" for each in (*given, f"outer_momentum={MOMENTUM}")))
    model, found = nn.Linear(1, 1, bias=False).double(), []
    nn.init.ones_(model.weight)
    with stepping(config, model, RATE) as stepped:
        for _ in range(steps):
            stepped(constant(rank))
            found.append(float(model.weight))
        stepped.strategy.drain()
    return found


def sent_and_met(rank: int, fragments: int, overlap: int) -> tuple[list[int], list[int], list[tuple[int, int]], int]:
    """Of three rounds: bytes sent after each step, parameters that went on from a mean, and when each was asked for.

    Last all trained elements.
    """
    given = ("sync.inner_steps=4", f"sync.fragments={fragments}", f"sync.overlap_steps={overlap}")
    sent, met, events, receive = [], [], [], local_steps.Fragment.receive

    def received(fragment: Any) -> Any:
        events.append((fragment.sent_after, len(met) + 1))
        return receive(fragment)

    with (
        patch.object(local_steps.Fragment, "receive", received),
        stepping(configured("diloco", *given), toy_model()) as steps,
    ):
        steps.strategy.wire.take()
        for _ in range(12):
            met.append(steps()["met_parameters"])
            steps.strategy.drain()  # so that what was sent is counted where it was
            sent.append(steps.strategy.wire.take().bytes_raw)
        return sent, met, events, sum(p.numel() for p in steps.module.parameters() if p.requires_grad)


def stopped(rank: int, sync: str, number: int) -> tuple[float, bool] | None:
    """What the first rank gives alone that stopped after some steps, every fourth of which averaged the models.

    Returns:
        How far it is from the weights after the last average, None where it gives nothing; whether the rank's own
        weights have stayed.
    """
    torch.manual_seed(0)
    with stepping(configured(sync, "sync.inner_steps=4"), nn.Linear(3, 3).double(), RATE) as steps:
        module, met = steps.module, {}
        for _ in range(number):
            if steps(constant(rank))["met_parameters"]:
                met = deepcopy(module.state_dict())
        own = deepcopy(module.state_dict())
        given = steps.strategy.state_alone() if rank == 0 else None
        dist.barrier()
        if given is None:
            return None
        stayed = all(torch.equal(own[name], tensor) for name, tensor in module.state_dict().items())
        return max(float((given[name] - met[name]).abs().max()) for name in given), stayed


def averaged(rank: int, piece: int) -> tuple[float, int, bool]:
    """An evaluation of ranks that have moved apart.

    Returns:
        How far what is evaluated is from their mean; the most elements that a gather was of; whether a rank's own
        parameters are back afterwards.
    """
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    with patch.object(local_steps, "PIECE", piece), stepping(configured("local_sgd"), model) as steps:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(rank)
        own, wire = deepcopy(model.state_dict()), steps.strategy.wire
        with patch.object(wire, "gather", wraps=wire.gather) as gather, steps.strategy.evaluating() as mean:
            found = deepcopy(mean.state_dict())
        apart = max(float((found[name] - tensor - 0.5 + rank).abs().max()) for name, tensor in own.items())
        back = all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
        return apart, max(len(call.args[0]) for call in gather.call_args_list), back


def trained_ahead(rank: int, folder: str, config: Config, gate: str, first: int, patience_s: float) -> None:
    """A run in which the last rank begins only when the first one has come to a step of its own."""
    opened = Path(gate)

    def gated(_: ReplicatedPlans, step: int) -> None:
        if rank == 0 and step == first:
            opened.touch()
        if rank == 1 and step == 0:
            deadline = time.monotonic() + patience_s
            while not opened.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the first rank has not come to step {first}")
                time.sleep(0.01)

    with before(ReplicatedPlans, "share", gated):
        train_run(rank, folder, config)
    dist.barrier()


def filled(rank: int, model: str) -> tuple[Difference | None, int]:
    """Fully sharded training of a model that only the first rank has values of, and knows what is frozen.

    Returns:
        How far it is from one process's training, where this rank has the state, and the most elements that this rank
        had of parameters that were not sharded.
    """

    def build() -> nn.Module:
        with torch.device("meta" if rank else "cpu"):
            models.append(MODELS[model]())
        if rank:
            models[-1].requires_grad_(True)
        return models[-1]

    models: list[nn.Module] = []
    whole, fully_shard = [], fully_sharded.fully_shard

    def shard(part: nn.Module, **settings: Any) -> Any:
        here = (p for p in models[-1].parameters() if not isinstance(p, DTensor) and not p.is_meta)
        whole.append(sum(p.numel() for p in here))
        return fully_shard(part, **settings)

    with patch.object(fully_sharded, "fully_shard", shard):
        return check_strategy(configured("fsdp"), Case("adamw", model=build)), max(whole)


def built(rank: int) -> bool:
    """Whether an engine's rank that is fully sharded builds its model with values; it can do without."""
    toy = Toy()
    with torch.device("meta"):
        empty = Mock(return_value=TiedModel().double())
    with patch.object(toy, "build_empty_model", empty, create=True), replicated(configured("fsdp", *UNPADDED), toy):
        return not empty.called


class RootMeanSquare(nn.Module):
    """Divides by what its inputs are in the middle, in their own type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))
        self.spare = nn.Parameter(torch.ones(3))  # used by nobody

    def forward(self, hidden: Tensor) -> Tensor:
        assert hidden.dtype == self.weight.dtype
        return self.weight * hidden / (hidden.square().mean(-1, keepdim=True) + 1e-5).sqrt()


class SomeLayers(nn.Module):
    """Layers of the types that are sharded, changed in place where they give views, and parameters of its own."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.norms = nn.ModuleList(RootMeanSquare() for _ in range(2))
        self.up, self.head = nn.Linear(16, 16), nn.Linear(16, VOCABULARY)
        self.gain, self.of_zeros = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(16, 1).t())
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norms[0](self.embed(tokens))
        if (tokens == 0).any():
            hidden = hidden + (tokens == 0).unsqueeze(-1) * self.of_zeros
        inner = self.up(hidden)
        inner += hidden
        return self.head(self.gain * self.norms[1](inner))


def partly_sharded(
    rank: int, compute_dtype: torch.dtype | None, tied: bool
) -> tuple[list[str], list[list[float] | None], list[int]]:
    """Three steps of a model of which linear layers and embeddings alone are sharded, which are as one process's.

    Returns:
        The parameters that are sharded; the gradients of the others; and how many of them were there at each call of
        `on_ready`.
    """
    torch.manual_seed(0)
    alone, ready = SomeLayers(tied), []
    model, begun = deepcopy(alone), deepcopy(alone.state_dict())
    plain = [p for name, p in model.named_parameters() if name.split(".")[0] not in ("embed", "up", "head")]
    tokens = torch.randint(1, VOCABULARY, (8, 6))
    tokens[4:, 0] = 0  # the other rank's alone
    mine = tokens[rank * 4 : rank * 4 + 4]
    with warnings.catch_warnings(action="error"):
        module = FullyShardedDDP(
            model,
            compute_dtype,
            sharded=(nn.Linear, nn.Embedding),
            on_ready=lambda: ready.append(sum(p.grad is not None for p in plain)),
        )
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, alone)]
        for _ in range(3):
            for each, rows in ((module, mine), (alone, tokens)):
                each.zero_grad()
                logits = each(rows).float()
                nn.functional.cross_entropy(logits.flatten(0, 1), rows.flatten()).backward()
            module.finish_gradient_synchronization()
            for optimizer in optimizers:
                optimizer.step()
    found, limit = module.gather_full_params(), 1e-5 if compute_dtype is None else 5e-3
    for name, wanted in alone.state_dict().items():
        assert (found[name] - wanted).norm() <= limit * (wanted - begun[name]).norm(), name
    whole = [None if p.grad is None else p.grad.tolist() for p in plain]
    return [name for name, p in model.named_parameters() if isinstance(p, DTensor)], whole, ready


class Wide(nn.Module):
    """Two blocks whose weights are rounded when they are gathered, an uneven one among them, and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(*shape), nn.Tanh()) for shape in ((48, 65), (65, 48)))
        self.head = nn.Linear(48, 50)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def gathered_in_bytes(
    rank: int, name: str, compress: str, compute_dtype: torch.dtype | None
) -> tuple[float, float, Traffic]:
    """Steps on rounded parameters held against one process that rounds them the same way, steps and keeps its own.

    Returns:
        The largest distance of a parameter at the end, relative to the largest; the same of rounded ones from those
        that are kept; and the traffic of a step.
    """
    torch.manual_seed(0)
    alone, changes = Wide(), ("sync.name=fsdp", f"compress.gather={name}", f"compress.name={compress}")
    wire = build_wire(load_config(overrides=changes), CPU)
    module = FullyShardedDDP(deepcopy(alone), compute_dtype, wire=wire)
    ours, reference = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, alone))
    for batch in torch.randn(3, 2, 4, 48):
        wire.take()
        module(batch[rank]).float().square().mean().backward()
        module.finish_gradient_synchronization()
        traffic = wire.take()
        ours.step()
        ours.zero_grad()
        rounded = deepcopy(alone)
        for copy, kept in zip(rounded.parameters(), alone.parameters(), strict=True):
            copy.data = _rounded(kept, name, compute_dtype)
        for each in batch:
            (rounded(each.to(copy.dtype)).float().square().mean() / 2).backward()
        for copy, kept in zip(rounded.parameters(), alone.parameters(), strict=True):
            kept.grad = copy.grad.float()
        reference.step()
    found, kept = module.gather_full_params(), alone.state_dict()
    wire.close()
    most = max(float(value.abs().max()) for value in kept.values())

    def apart(state: Mapping[str, Tensor]) -> float:
        return max(float((state[key].float() - value).abs().max()) for key, value in kept.items()) / most

    return apart(found), apart(rounded.state_dict()), traffic


def _rounded(parameter: Tensor, name: str, compute_dtype: torch.dtype | None) -> Tensor:
    """A parameter as both ranks compute with it: each rank's half of its rows, filled up, by the codec."""
    codec = Qsgd(bits=8, bucket=256, contractive=True) if name == "int8" else Fp8()
    value = parameter.detach() if compute_dtype is None else parameter.detach().to(compute_dtype)
    rows = -(-len(value) // 2)
    halves = [nn.functional.pad(half, (0, 0) * (half.dim() - 1) + (0, rows - len(half))) for half in value.split(rows)]
    if halves[0].numel() >= 1024:
        halves = [codec.decompress(codec.compress(half)) for half in halves]
    return torch.cat(halves)[: len(value)]
