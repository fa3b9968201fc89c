"""A strategy judged: a toy trained on random data by several ranks, and by one process on the whole batches.

In double precision the two differ by rounding alone. The toy has what strategies go wrong on: a tied parameter, a
frozen one, one that is never used, and one that only some samples use; ranks have unequal shares in unequal numbers of
micro-batches. The ranks are processes of this machine that end with the check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.rank.local_ranks import answers_of_ranks
from dynbench.engine.rank.loop import build_strategy, session
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.plugins import STRATEGIES
from dynbench.sync import ShardedOptimizer
from dynbench.sync.base import Strategy
from dynbench.wire.base import Wire

STEPS = 10
MOST_MICRO_BATCHES = 3
VOCABULARY, WIDTH, LENGTH = 40, 12, 6
RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Rounding in double precision, of a weight and beside it."""
SMALL_BUCKET_MB = 0.0003
"""So that the toy fills many buckets."""
State = Mapping[str, Tensor]
OptimizerName = Literal["sgd", "adamw"]
OPTIMIZERS: Mapping[OptimizerName, tuple[Any, Mapping[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.1}),
}
"""Classes with their settings."""
SHARDED = "ShardedOptimizer"
"""Checked like a strategy, around the optimizers under `bucketed`."""


class ToyModel(nn.Module):
    """Predicts a class for each row of tokens; rows that begin with an even one take a further turn.

    Its blocks lie in a list of lists, the inner ones of which are never called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.turn = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH).eval()
        self.layers = nn.ModuleList([nn.ModuleList([_block(), _block()]) for _ in range(2)])
        self.score = nn.Linear(WIDTH, VOCABULARY)
        self.score.weight = self.embed.weight
        self.unused = nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape [n, VOCABULARY] for tokens of shape [n, LENGTH]."""
        hidden = torch.tanh(self.frozen(self.mix(self.embed(tokens)))).mean(1)
        even = tokens[:, 0] % 2 == 0
        if bool(even.any()):
            hidden = torch.where(even[:, None], torch.tanh(self.turn(hidden)), hidden)
        for pair in self.layers:
            assert isinstance(pair, nn.ModuleList)
            first, second = pair
            hidden = second(hidden + first(hidden))
        scored: Tensor = self.score(self.norm(hidden))
        return scored


def _block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def toy_model() -> nn.Module:
    """The toy, the same wherever it is built."""
    torch.manual_seed(0)
    return ToyModel().double()


@dataclass(frozen=True)
class Case:
    """What is trained.

    Args:
        optimizer: of the steps.
        sharded: whether ranks divide its state by `ShardedOptimizer`.
        steps: their number.
        model: builds the model, equal on every rank, in double precision; from tokens of shape [n, LENGTH] it makes
            logits of shape [n, VOCABULARY].
        even: equal shares of one micro-batch each.
    """

    optimizer: OptimizerName = "adamw"
    sharded: bool = False
    steps: int = STEPS
    model: Callable[[], nn.Module] = toy_model
    even: bool = False

    def build_optimizer(self, parameters: Iterable[nn.Parameter], wire: Wire | None = None) -> Optimizer:
        """The optimizer; of a rank, by its wire."""
        kind, settings = OPTIMIZERS[self.optimizer]
        if wire is not None and self.sharded:
            return ShardedOptimizer(parameters, kind, wire=wire, **settings)
        optimizer: Optimizer = kind(parameters, **settings)
        return optimizer

    def shares(self, step: int, workers: int) -> list[list[Tensor]]:
        """Tokens of a step by worker and micro-batch, each of shape [n, LENGTH]."""
        random = torch.Generator().manual_seed(1000 + step)

        def drawn(most: int) -> int:
            return 1 + int(torch.randint(most, (), generator=random))

        def batch() -> Tensor:
            rows = 3 if self.even else drawn(4)
            return torch.randint(VOCABULARY, (rows, LENGTH), generator=random)

        return [[batch() for _ in range(1 if self.even else drawn(MOST_MICRO_BATCHES))] for _ in range(workers)]


def train_alone(case: Case, workers: int) -> State:
    """The state of the model that one process trained on the batches of so many workers."""
    model = case.model()
    optimizer = case.build_optimizer(model.parameters())
    for step in range(case.steps):
        tokens = torch.cat([batch for share in case.shares(step, workers) for batch in share])
        torch.autograd.backward(_loss(model, tokens) / len(tokens))
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def train_on_ranks(strategy: Strategy, case: Case) -> State | None:
    """The state of the model that this rank and the others trained, where this one has it; all ranks call it."""
    device, ranks, rank = torch.device("cpu"), strategy.ranks, strategy.wire.rank
    module = strategy.wrap(case.model(), device)
    optimizer = strategy.build_optimizer(module.parameters(), partial(case.build_optimizer, wire=strategy.wire))
    precision = Precision("fp32", device, None if strategy.equal_gradients else lambda _: None)
    for step in range(case.steps):
        shares = case.shares(step, ranks.workers)
        scale = ranks.workers / sum(len(batch) for share in shares for batch in share)
        if ranks.serves(rank):
            strategy.serve()
        else:
            most = max(map(len, shares)) if strategy.collective_forward else 0
            _accumulate(strategy, shares[ranks.worker(rank)], scale, most)
        strategy.step(optimizer, precision)
        strategy.clear_gradients(optimizer)
    strategy.drain()
    return strategy.full_state()


def _accumulate(strategy: Strategy, share: Sequence[Tensor], scale: float, most: int) -> None:
    """Forward and backward of micro-batches, the last again without weight until there are `most`."""
    scales = [scale] * len(share) + [0.0] * (most - len(share))
    batches = [*share, *[share[-1]] * (most - len(share))]
    with strategy.accumulating():
        for tokens, factor in zip(batches[:-1], scales, strict=False):
            torch.autograd.backward(_loss(strategy.module, tokens) * factor)
    torch.autograd.backward(_loss(strategy.module, batches[-1]) * scales[-1])
    strategy.finish()


def _loss(module: nn.Module, tokens: Tensor) -> Tensor:
    """Of a batch, summed over its rows: the last token is the one to predict."""
    return nn.functional.cross_entropy(module(tokens), tokens[:, -1], reduction="sum")


@dataclass(frozen=True)
class Difference:
    """How far two states of a model are apart.

    Attributes:
        largest: absolute, over all weights.
        name: of the tensor where it is.
        of_rounding: the largest in units of what rounding explains, `RELATIVE` and `ABSOLUTE`: above 1 they differ.
    """

    largest: float
    name: str
    of_rounding: float


def difference(found: State, wanted: State) -> Difference:
    """How far `found` is from `wanted`, which has the same tensors; infinitely far where a weight is no number."""
    apart = {
        name: (found[name] - tensor).abs().nan_to_num(nan=math.inf, posinf=math.inf) for name, tensor in wanted.items()
    }
    name = max(apart, key=lambda each: float(apart[each].max()))
    largest = float(apart[name].max())
    explained = {name: ABSOLUTE + RELATIVE * tensor.abs() for name, tensor in wanted.items()}
    rounding = max(float((apart[name] / explained[name]).max()) for name in wanted) if largest < math.inf else math.inf
    return Difference(largest, name, rounding)


def check_strategy(config: Config, case: Case) -> Difference | None:
    """What ranks trained under a strategy against what one process did, on a rank that has the state; a collective."""
    with session(build_strategy(config, torch.device("cpu"))) as strategy:
        state, workers = train_on_ranks(strategy, case), strategy.ranks.workers
    return None if state is None else difference(state, train_alone(case, workers))


def config_of(name: str) -> Config:
    """The settings that a strategy is checked with: the toy has parameters that are not used, and many buckets."""
    wanted = {"find_unused": "true", "bucket_mb": str(SMALL_BUCKET_MB)}
    options = [f"sync.{key}={value}" for key, value in wanted.items() if STRATEGIES.find(name).reads(key)]
    return load_config(None, [f"sync.name={name}", *options])


@dataclass(frozen=True)
class Checked:
    """One strategy after the steps of one optimizer, as `sync check --json` lists it."""

    strategy: str
    """Its name."""
    optimizer: str
    """sgd or adamw."""
    ranks: int
    """Of the group, those that serve among them."""
    difference: float
    """Largest absolute difference of a weight."""
    tensor: str
    """Where that is."""
    exact: bool
    """Whether the strategy promises none beyond rounding."""
    passed: bool
    """Whether it keeps that promise; one that does not promise it passes."""


def check_strategies(names: Sequence[str], ranks: int) -> Generator[Checked, None, None]:
    """Train the toy with each strategy on so many ranks that train, and one process beside them.

    Args:
        names: of the registry, or `SHARDED`.
        ranks: that train; those that serve come on top.

    Raises:
        UsageError: a name that is not registered.
        WorkerFailed: a rank ended with an error.
    """
    entries = {name: STRATEGIES.find(_strategy(name)) for name in names}
    for servers in sorted({entry.servers for entry in entries.values()}):
        group = [name for name, entry in entries.items() if entry.servers == servers]
        for name, optimizer, found in _on_processes(group, ranks + servers):
            exact = entries[name].exact
            passed = not exact or found.of_rounding <= 1
            yield Checked(name, optimizer, ranks + servers, found.largest, found.name, exact, passed)


def _strategy(name: str) -> str:
    return "bucketed" if name == SHARDED else name


Found = tuple[str, str, Difference]
"""A strategy, an optimizer, and how far their weights are apart."""


def _on_processes(names: list[str], world_size: int) -> Iterator[Found]:
    hint = f"Check one strategy at a time: dynbench sync check {names[0]}."
    return answers_of_ranks(_found, (names,), world_size, "sync check", hint)


def _found(names: Sequence[str]) -> Iterator[Found]:
    """On a rank that has the states, how far they are apart; a collective."""
    for name in names:
        for optimizer in OPTIMIZERS:
            found = check_strategy(config_of(_strategy(name)), Case(optimizer, sharded=name == SHARDED))
            if found is not None:
                yield name, optimizer, found
