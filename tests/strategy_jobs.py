"""What warm ranks do with a strategy, by the names of strategy and compressor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from batches import batch_of
from torch import Tensor
from toys import BROKEN_STRATEGIES, COMPRESSORS, STRATEGIES, Toy

from dynbench import plugins
from dynbench.config.layers import load_config
from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config
from dynbench.engine.planning import Planned, ReplicatedPlans
from dynbench.engine.rank import evaluation, replica
from dynbench.engine.rank import loop as real
from dynbench.engine.rank.exchange import GlobalBatch
from dynbench.engine.rank.memory import HeldMemory, memory_meter
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.toy_check import SMALL_BUCKET_MB
from dynbench.engine.rank.worker import train
from dynbench.plugins import CompressorEntry, StrategyEntry
from dynbench.runs.run import Run
from dynbench.sync.fsdp import Fsdp
from dynbench.workloads.batches import evened_out

CPU = torch.device("cpu")
TRIALS = 6
LARGEST_NORM = 0.6
"""Of gradients that are clipped; some of those of a toy's steps are above it, some below."""
STEPS = 4
SETTINGS = (
    "workload.dropout=0",
    "workload.subset=64",
    "workload.max_length=64",
    "train.global_batch=12",
    "train.warmup_steps=1",
    f"train.steps={STEPS - 1}",
    "train.eval_samples=9",
    "train.eval_every=2",
    "launch.threads=1",
    "launch.device=cpu",
)
"""A run of a few uneven steps with evaluations; how many ranks take part is the test's own."""


@contextmanager
def known() -> Iterator[None]:
    """The toys are registered, and the broken ones."""
    strategies = {name: StrategyEntry(name, "a toy", toy) for name, toy in (STRATEGIES | BROKEN_STRATEGIES).items()}
    compressors = {name: CompressorEntry(name, "a toy", toy) for name, toy in COMPRESSORS.items()}
    with (
        patch.dict(plugins.STRATEGIES.entries, strategies),
        patch.dict(plugins.COMPRESSORS.entries, compressors),
    ):
        yield


def named(config: Config, sync: str, compress: str | None = None, null: bool = False) -> Config:
    """A configuration with a toy in it, of which the schema knows nothing; `null` sends nothing."""
    changed: dict[str, Any] = {"sync": config.sync.model_copy(update={"name": sync, "communicate": not null})}
    if compress is not None:
        changed["compress"] = config.compress.model_copy(update={"name": compress})
    return config.model_copy(update=changed)


def configured(sync: str, *settings: str, compress: str | None = None, null: bool = False) -> Config:
    """Settings of a strategy for models with unused parameters and many buckets."""
    with known():
        wanted = {"find_unused": "true", "bucket_mb": SMALL_BUCKET_MB, "inner_steps": 1}
        options = [f"sync.{key}={value}" for key, value in wanted.items() if plugins.STRATEGIES[sync].reads(key)]
    return named(load_config(None, [*options, *settings]), sync, compress, null)


UNPADDED = ("workload.pad_to_multiple_of=1", "train.precision=fp32", "train.learning_rate=1e-2")


@contextmanager
def replicated(config: Config, workload: Any, device: torch.device = CPU) -> Iterator[Replica]:
    """This rank's replica under a configured strategy, which is closed afterwards."""
    with known(), closing(real.build_strategy(config, device)) as strategy:
        yield Replica(config, workload, device, StepTimer(device), strategy)


def deal(random: np.random.Generator, ranks: Ranks) -> list[list[np.ndarray]]:
    """Some of the samples dealt unevenly over the ranks that train and their micro-batches, each at least one."""
    counts = random.integers(1, 4, size=ranks.workers)
    parts = int(counts.sum())
    used = random.permutation(60)[: random.integers(2 * parts, 61)]
    cuts = np.sort(random.choice(np.arange(1, len(used)), size=parts - 1, replace=False))
    pieces = np.split(used, cuts)
    return [pieces[end - count : end] for end, count in zip(np.cumsum(counts), counts, strict=True)]


@dataclass
class Watch:
    """What a strategy does in a step: `ready`, and the verbs that it sends with, each after so many gradients."""

    events: list[tuple[str, int]] = field(default_factory=list)
    gradients: int = 0
    """How often one became complete."""

    def note(self, event: str) -> None:
        self.events.append((event, self.gradients))

    def noting(self, verb: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        """A verb of a wire that sends gradients."""
        return lambda *given: self.note(verb) or inner(*given)

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


def watched_steps(
    rank: int, sync: str, compress: str, null: bool = False, clips: bool = False, on_gpus: bool = False
) -> list[dict[str, Any]]:
    """Steps on random uneven shares, each of which moves the parameters by their gradient.

    Returns:
        Of each step: `error` (relative distance of what rank 0 moved by from the gradient of the whole batch in one
        process, or with `null` of this rank's own share), `moved` (by how much), the replica's row, `events`,
        `gradients` (how many there should be), and the traffic.
    """
    changes = ["train.learning_rate=1.0", "compress.min_elements=0", *[f"train.max_grad_norm={LARGEST_NORM}"] * clips]
    config = configured(sync, *UNPADDED, *changes, compress=compress, null=null)
    device = torch.device("cuda", rank) if on_gpus else CPU
    if on_gpus:
        torch.cuda.set_device(device)
    toy, random, watch, results = Toy(), np.random.default_rng(1), Watch(), []
    build = toy.build_model
    with (
        patch.object(replica, "build_optimizer", lambda parameters, _: torch.optim.SGD(parameters, lr=1.0)),
        patch.object(toy, "build_model", lambda seed: watch.count((model := build(seed)).parameters()) or model),
        patch.object(Replica, "_on_ready", lambda self: watch.note("ready") or self._timer.note_ready()),
        replicated(config, toy, device) as one,
    ):
        strategy, ranks = one.strategy, one.strategy.ranks
        if isinstance(strategy, Fsdp):
            watch.count_unsharded(strategy)
        trainable = sum(parameter.requires_grad for parameter in one.model.parameters())
        verbs = {verb: watch.noting(verb, getattr(strategy.wire, verb)) for verb in ("mean", "mean_shard", "send")}
        for _ in range(TRIALS):
            shares = deal(random, ranks)  # all ranks have equal generators
            mine = () if ranks.serves(rank) else tuple(shares[ranks.worker(rank)])
            total, batches = GlobalBatch(sum(map(len, mine)), one.weight(mine), ranks.workers), one.load(mine)
            if strategy.collective_forward:
                batches = evened_out(batches, max(map(len, shares)))
            before = strategy.full_state()
            strategy.wire.take()
            watch.events, watch.gradients = [], 0
            with patch.multiple(strategy.wire, **verbs):
                parts = one.compute(batches, total.scale)
            assert [part.n for part in parts] == [len(ids) for ids in mine]
            one.update()
            strategy.drain()
            one._timer.end_step()
            traffic, after = strategy.wire.take(), strategy.full_state()
            ids = np.concatenate([part for share in ([mine] if null else shares) for part in share])
            scale = total.scale() * toy.train.weights[ids].sum() if null else 1.0
            there = before is not None and after is not None
            error, distance = moved(ids, before, after, scale) if there else (None, None)
            result = {"error": error, "moved": distance, **one.row(), "events": watch.events, "traffic": traffic}
            results.append({**result, "gradients": trainable * len(batches)})
    return results


def memory_and_losses(rank: int, folder: str, sync: str, null: bool) -> tuple[dict[str, float | None], list[float]]:
    """This rank's memory after a step, MB by kind, and the losses of a few steps, with communication or without."""
    config = configured(sync, *UNPADDED, compress="none", null=null)
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


def moved(ids: np.ndarray, before: dict[str, Tensor], after: dict[str, Tensor], scale: float) -> tuple[float, float]:
    """How far what parameters moved by is from the gradient of the mean loss by weight, as a part of it; its norm."""
    toy = Toy()
    model = toy.build_model(0)
    model.load_state_dict(before)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = toy.loss(model, batch_of(toy, ids)) / toy.train.weights[ids].sum()
    wanted = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, [*trained.values()])]) * scale
    found = torch.cat([(before[name] - after[name]).flatten() for name in trained])
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("frozen"))
    return float((found - wanted).norm() / wanted.norm()), float(found.norm())


def train_run(rank: int, folder: str, config: Config) -> None:
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
        train([run], [config], context, StopFlag())


def before(owner: type, name: str, does: Callable[..., object]) -> Any:
    """Patches a method of a class: something is done first, with the same arguments."""
    inner = getattr(owner, name)

    def method(self: Any, *given: Any) -> Any:
        does(self, *given)
        return inner(self, *given)

    return patch.object(owner, name, method)


PLACES = ("plan", "data", "compute")
"""What the last rank is late with in the steps that are measured, one after the other."""


def train_late(rank: int, folder: str, config: Config, late_s: float) -> None:
    """This rank's part of a run whose last rank is late in every measured step, see `PLACES`."""
    world_size, run, measured = dist.get_world_size(), Run(Path(folder)), [0]
    context = RankContext(rank, rank, world_size, CPU)

    def begins(place: str) -> None:
        if rank == world_size - 1 and measured[0] == PLACES.index(place):
            time.sleep(late_s)

    def plans(_: ReplicatedPlans, step: int) -> None:
        measured[0] = step - config.train.warmup_steps
        begins("plan")

    with (
        before(ReplicatedPlans, "share", plans),
        before(Replica, "load", lambda *_: begins("data")),
        before(Replica, "_loss", lambda *_: begins("compute")),
    ):
        train([run], [config], context, StopFlag())
