"""What warm ranks do with a strategy, by the names of strategy and compressor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from batches import batch_of
from broken_sync import BROKEN_SYNC
from torch import Tensor
from toys import (
    BROKEN_COMPRESSORS,
    BROKEN_SERVING,
    BROKEN_STRATEGIES,
    COMPRESSORS,
    STRATEGIES,
    GivesMeans,
    Toy,
)

from dynbench import plugins
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.failure import Position, last_position
from dynbench.engine.planning import Planned, ReplicatedPlans
from dynbench.engine.rank import evaluation, replica
from dynbench.engine.rank import loop as real
from dynbench.engine.rank.exchange import GlobalBatch
from dynbench.engine.rank.memory import HeldMemory, memory_meter
from dynbench.engine.rank.rank_facts import tell_failure
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.worker import train
from dynbench.plugins import CompressorEntry, StrategyEntry
from dynbench.runs.run import Run
from dynbench.sync.fsdp import Fsdp
from dynbench.workloads.batches import evened_out
from dynbench.workloads.data import TokenisedData

CPU = torch.device("cpu")
TRIALS = 6
LARGEST_NORM = 0.6
"""Of gradients that are clipped; some of those of a toy's steps are above it, some below."""
STEPS = 4
SETTINGS = (
    "workload.dropout=0",
    "workload.subset=64",
    "train.global_batch=12",
    "train.warmup_steps=1",
    f"train.steps={STEPS - 1}",
    "train.eval_samples=9",
    "train.eval_every=2",
    "launch.threads=1",
    "launch.device=cpu",
)
"""A run of a few uneven steps with evaluations; how many ranks take part is the test's own."""


def entries(form: Any, made: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """Toys as a registry lists them."""
    return {name: form(name, "a toy", target, **properties) for name, target in made.items()}


@contextmanager
def known() -> Iterator[None]:
    """The toys are registered."""
    strategies = entries(StrategyEntry, STRATEGIES | BROKEN_STRATEGIES | BROKEN_SYNC)
    serving = entries(StrategyEntry, BROKEN_SERVING, servers=1)
    with (
        patch.dict(plugins.STRATEGIES.entries, strategies | serving),
        patch.dict(plugins.COMPRESSORS.entries, entries(CompressorEntry, COMPRESSORS | BROKEN_COMPRESSORS)),
    ):
        yield


def named(config: Config, sync: str, compress: str | None = None, null: bool = False) -> Config:
    """A configuration with a toy in it, of which the schema knows nothing; `null` sends nothing."""
    changed: dict[str, Any] = {"sync": config.sync.model_copy(update={"name": sync, "communicate": not null})}
    if compress is not None:
        changed["compress"] = config.compress.model_copy(update={"name": compress})
    return config.model_copy(update=changed)


UNPADDED = ("workload.pad_to_multiple_of=1", "train.precision=fp32", "train.learning_rate=1e-2")


@contextmanager
def replicated(config: Config, workload: Any, device: torch.device = CPU) -> Iterator[Replica]:
    """This rank's replica under a configured strategy, which is closed afterwards."""
    with known(), closing(real.build_strategy(config, device)) as strategy:
        yield Replica(config, workload, device, StepTimer(device), strategy)


@dataclass
class Dealt:
    """Random uneven shares of a step, and what this rank runs of them."""

    shares: list[list[np.ndarray]]
    mine: list[np.ndarray]
    total: GlobalBatch
    batches: list[Any]


def deal(random: np.random.Generator, one: Replica) -> Dealt:
    """The shares of a step; all ranks call it with equal generators."""
    strategy, ranks = one.strategy, one.strategy.ranks
    shares = random_shares(random, random.integers(1, 4, size=ranks.workers))
    mine = [] if ranks.serves(strategy.wire.rank) else shares[ranks.worker(strategy.wire.rank)]
    total = GlobalBatch(sum(map(len, mine)), one.weight(tuple(mine)), ranks.workers)
    batches = one.load(tuple(mine))
    if strategy.collective_forward:
        batches = evened_out(batches, max(map(len, shares)))
    return Dealt(shares, mine, total, batches)


@dataclass
class Watch:
    """What a strategy does in a step, in order: `ready`, and the verbs that it sends with."""

    events: list[str] = field(default_factory=list)
    gradients: int = 0
    """How often a gradient became complete."""
    gradients_at_ready: list[int] = field(default_factory=list)

    def ready(self, timer: StepTimer) -> None:
        self.events.append("ready")
        self.gradients_at_ready.append(self.gradients)
        timer.note_ready()

    def count(self, parameters: Iterable[Tensor]) -> None:
        """Count the gradients of these; called before anything else looks at them."""
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _: setattr(self, "gradients", self.gradients + 1))

    def count_unsharded(self, strategy: Fsdp) -> None:
        """Likewise of parameters that are made in the first forward pass."""
        hook = strategy.module.register_forward_hook(
            lambda *_: hook.remove() or self.count(each._unsharded_param for each in strategy.module._trained)
        )

    def send(self, verb: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        """A verb of a wire that sends gradients, noted."""
        return lambda *given: self.events.append(verb) or inner(*given)


def watched_steps(
    rank: int,
    sync: str,
    compress: str,
    null: bool,
    fault: str | None = None,
    clips: bool = False,
    device: torch.device = CPU,
) -> list[dict[str, Any]]:
    """Steps on random uneven shares, each of which moves the parameters by their gradient.

    Planted faults are `counts` (samples in place of weights), `means` (of a batch in place of sums) and `repeats` (what
    is run again counts).

    Returns:
        Of each step: `error` (relative distance of what rank 0 moved by from the gradient of the whole batch in one
        process, or with `null` of this rank's own share), `moved` (by how much), the replica's row, `events`,
        `gradients_at_ready`, `expected_gradients`, and the traffic.
    """
    clip = [f"train.max_grad_norm={LARGEST_NORM}"] if clips else []
    config = named(load_config(None, [*UNPADDED, "train.learning_rate=1.0", *clip]), sync, compress, null)
    toy, random, watch, results = GivesMeans() if fault == "means" else Toy(), np.random.default_rng(1), Watch(), []
    build = toy.build_model
    with (
        patch.object(TokenisedData, "weight", lambda _, ids: len(ids)) if fault == "counts" else nullcontext(),
        patch.object(replica, "build_optimizer", lambda parameters, _: torch.optim.SGD(parameters, lr=1.0)),
        patch.object(toy, "build_model", lambda seed: watch.count((model := build(seed)).parameters()) or model),
        patch.object(Replica, "_on_ready", lambda self: watch.ready(self._timer)),
        replicated(config, toy, device) as one,
    ):
        strategy = one.strategy
        if isinstance(strategy, Fsdp):
            watch.count_unsharded(strategy)
        trainable = sum(parameter.requires_grad for parameter in one.model.parameters())
        verbs = {verb: watch.send(verb, getattr(strategy.wire, verb)) for verb in ("mean", "mean_shard", "send")}
        for _ in range(TRIALS):
            step = deal(random, one)
            before = strategy.full_state()
            strategy.wire.take()
            watch.events, watch.gradients, watch.gradients_at_ready = [], 0, []
            if fault == "repeats":
                step.total = GlobalBatch(step.total.samples(), sum(batch.weight for batch in step.batches))
            with patch.multiple(strategy.wire, **verbs):
                parts = one.compute(step.batches, step.total.scale)
            assert [part.n for part in parts] == [len(ids) for ids in step.mine]
            one.update()
            strategy.drain()
            one._timer.end_step()
            traffic, after = strategy.wire.take(), strategy.full_state()
            ids = np.concatenate([part for share in (step.shares if not null else [step.mine]) for part in share])
            scale = step.total.scale() * toy.train.weights[ids].sum() if null else 1.0
            there = before is not None and after is not None
            results.append(
                {
                    "error": moved(ids, before, after, scale) if there else None,
                    "moved": distance(before, after) if there else None,
                    **one.row(),
                    "events": watch.events,
                    "gradients_at_ready": watch.gradients_at_ready,
                    "expected_gradients": trainable * len(step.batches),
                    "traffic": traffic,
                }
            )
    return results


def memory_and_losses(rank: int, folder: str, sync: str, null: bool) -> tuple[dict[str, float | None], list[float]]:
    """This rank's memory after a step, MB by kind, and the losses of a few steps, with communication or without."""
    config = named(load_config(None, UNPADDED), sync, "none", null)
    losses, run = [], Run(Path(folder))
    run.ranks_dir.mkdir(exist_ok=True)
    with replicated(config, Toy()) as one:
        memory = HeldMemory(run, rank, one, memory_meter(CPU), wanted=True)
        for _ in range(3):
            with memory.computing():
                parts = one.compute(one.load((np.arange(8 * rank, 8 * rank + 8),)), lambda: 1 / 8)
            one.update(memory.stepped)
            losses += [float(part.total) for part in parts]
        one.strategy.drain()
    found = memory._found["after_step"]
    return {kind: value for kind, value in found.items() if kind != "peak_mb"}, losses


def random_shares(random: np.random.Generator, counts: np.ndarray) -> list[list[np.ndarray]]:
    """Some of the samples dealt unevenly over ranks and their micro-batches, each at least one."""
    parts = int(counts.sum())
    used = random.permutation(60)[: random.integers(2 * parts, 61)]
    cuts = np.sort(random.choice(np.arange(1, len(used)), size=parts - 1, replace=False))
    pieces = np.split(used, cuts)
    ends = np.cumsum(counts)
    return [pieces[end - count : end] for end, count in zip(ends, counts, strict=True)]


def moved(ids: np.ndarray, before: dict[str, Tensor], after: dict[str, Tensor], scale: float) -> float:
    """Relative distance between what the parameters moved by and the gradient of the mean loss by weight."""
    toy = Toy()
    model = toy.build_model(0)
    model.load_state_dict(before)
    (toy.loss(model, batch_of(toy, ids)) / toy.train.weights[ids].sum()).backward()
    found = torch.cat([(before[name] - after[name]).flatten() for name, _ in model.named_parameters()])
    wanted = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() * scale for p in model.parameters()]
    )
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("frozen"))
    return float((found - wanted).norm() / wanted.norm())


def distance(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """How far the parameters moved, a tied one once."""
    names = [name for name, _ in Toy().build_model(0).named_parameters()]
    return float(torch.cat([(before[name] - after[name]).flatten() for name in names]).norm())


def train_run(rank: int, folder: str, config: Config, tell: bool = False) -> None:
    """This rank's part of a run, as a launched rank trains it, with uneven micro-batches and evaluation batches."""
    whole = ReplicatedPlans.share

    def uneven(self: ReplicatedPlans, step: int) -> Planned:
        everyone = [np.concatenate(share) for share in whole(self, step)[1] or ()]
        shares = tuple(
            tuple(np.array_split(ids, min(len(ids), 1 + (step + rank) % 3))) for rank, ids in enumerate(everyone)
        )
        return shares[self._rank], shares

    context, run = RankContext(rank, rank, dist.get_world_size(), CPU), Run(Path(folder))
    with (
        known(),
        patch.object(ReplicatedPlans, "share", uneven),
        patch.object(evaluation, "EVAL_BATCH", 4),
    ):
        try:
            train([run], [config], context, StopFlag())
        except BaseException as error:
            if tell:
                tell_failure(run, rank, error)
            raise


def before(owner: type, name: str, does: Callable[..., object]) -> Any:
    """Patches a method of a class: something is done first, with the same arguments."""
    inner = getattr(owner, name)

    def method(self: Any, *given: Any) -> Any:
        does(self, *given)
        return inner(self, *given)

    return patch.object(owner, name, method)


PLACES = ("plan", "data", "compute")
"""What the last rank is late with in the steps that are measured, one after the other."""
Spans = list[tuple[int, int]]


def train_late(rank: int, folder: str, config: Config, first: int, late_s: float) -> dict[str, Spans]:
    """This rank's part of a run whose last rank is late in every measured step, see `PLACES`.

    It stops until the rank `first` has waited for a while, and then for so long again.

    Returns:
        By place, begin and end in nanoseconds of the host's clock: of the last rank's second stop, and of what the
        others spent in sync.
    """
    world_size, run = dist.get_world_size(), Run(Path(folder))
    context, found = RankContext(rank, rank, world_size, CPU), {place: [] for place in PLACES}
    late = rank == world_size - 1
    end_step, step = StepTimer.end_step, [0]

    def place() -> str | None:
        return PLACES[step[0] % len(PLACES)] if step[0] >= config.train.warmup_steps else None

    def stop(at: str) -> None:
        if not late or at != place():
            return
        in_sync, deadline = 0, time.monotonic() + 20
        while in_sync < 20 and time.monotonic() < deadline:
            in_sync = in_sync + 1 if last_position(run, first) == Position(step[0], "sync") else 0
            time.sleep(0.01)
        begin = time.perf_counter_ns()
        time.sleep(late_s)
        found[at].append((begin, time.perf_counter_ns()))

    def planned(_: ReplicatedPlans, number: int) -> None:
        step[0] = number
        stop("plan")

    def ended(self: StepTimer) -> Any:
        phases = end_step(self)
        if not late and (at := place()) is not None:
            found[at].extend(self.synchronised.spans_ns)
        return phases

    context.position.open(run, rank)
    with (
        before(ReplicatedPlans, "share", planned),
        before(Replica, "load", lambda *_: stop("data")),
        before(Replica, "_loss", lambda *_: stop("compute")),
        patch.object(StepTimer, "end_step", ended),
    ):
        train([run], [config], context, StopFlag())
    return found
