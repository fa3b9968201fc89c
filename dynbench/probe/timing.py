"""Steps timed, and the price of a split.

A bare model does not tell. Under DistributedDataParallel the first micro-batch's gradients are kept apart from the
buckets, so that a further one adds to them and copies them, on all ranks at once, and leaves less of the backward pass
for the all-reduce to hide behind.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch

from dynbench.config.schema import Config
from dynbench.engine.rank.real import build_strategy
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer
from dynbench.probe.capacity import StartChildren
from dynbench.probe.children import Children, Reply
from dynbench.probe.fit import GridPoint, fit_measured, judge, split
from dynbench.probe.limits import shaped_batch
from dynbench.runs.probe_record import AllReduce, CostFit, TimingRow
from dynbench.schedule.plan import FloatArray
from dynbench.units import mb
from dynbench.workloads.base import Workload

log = logging.getLogger(__name__)

REDUCE_REPEATS = 7
FURTHER_REPEATS = 8
_UNPRICED = "probe: what a further micro-batch costs is unknown: %s; schedule.further_ms sets the price"
SETTLING = 3
"""Steps of a block before those that count."""


class Timings(NamedTuple):
    """What the ranks were timed at."""

    points: list[tuple[int, GridPoint]]
    """Median step time, by rank."""
    further: list[float] | None
    """What every micro-batch of a step after its first costs beside its samples, ms, shape [G]; None where the
    strategy has servers, too few samples fit to tell, or a rank ended while it was timed."""
    allreduce: AllReduce


def grid(tables: Sequence[Sequence[tuple[int, int]]], ceiling: int) -> list[tuple[int, int]]:
    """(samples, length) pairs that fit on every rank: powers of two up to the smallest capacity, and that capacity."""
    points = []
    for column in zip(*tables, strict=True):
        length = column[0][0]
        largest = min(ceiling, *(max_batch for _, max_batch in column))
        counts = {2**exponent for exponent in range(largest.bit_length())} | {largest} if largest else set()
        points += [(n, length) for n in sorted(counts)]
    return points


def time_grid(
    start: StartChildren,
    start_splits: StartChildren | None,
    points: Sequence[tuple[int, int]],
    repeats: int,
    seed: int,
    report: Callable[[str], None],
    slowdown: Mapping[int, float],
    share: int,
) -> Timings:
    """Times of every rank, stretched by `slowdown`, of the gradient's all-reduce, and of a step in two micro-batches.

    The order of the points is shuffled, so that a machine that slows down over time does not bend the fit.

    Args:
        start: starts the trial processes.
        start_splits: starts processes that time splits only: after trials gradients find their memory in the allocator,
            in training they do not. None under a strategy with servers: trial processes are the workers only, and the
            strategy would take the first of them for a server.
        points: (samples, length) of the micro-batches.
        repeats: times per point.
        seed: of the order.
        report: told what is being timed.
        slowdown: rank to factor.
        share: samples of a rank in a step (B / G), what splitting is timed with as far as they fit.

    Raises:
        WorkerFailed: a trial process ended without an answer.
    """
    measured: list[tuple[int, GridPoint]] = []
    with start() as children:
        for done, index in enumerate(np.random.default_rng(seed).permutation(len(points))):
            n, length = points[index]
            report(f"timing {n} samples x {length} tokens ({done + 1} of {len(points)})")
            asked = {"op": "time", "n": n, "length": length, "repeats": repeats}
            times = _answered(children, children.ask_all(asked))
            for rank, repeated in enumerate(times):
                ms = statistics.median(repeated) * slowdown.get(rank, 1.0)
                measured.append((rank, GridPoint(n, length, ms)))
        reduced = _answered(children, children.ask_all({"op": "reduce", "repeats": REDUCE_REPEATS}, together=True))
    further = _time_further(start_splits, points, share, report, slowdown)
    allreduce = AllReduce(megabytes=mb(children.gradient_bytes), ms=max(reduced), world_size=children.world_size)
    return Timings(measured, further, allreduce)


def _time_further(
    start: StartChildren | None,
    points: Sequence[tuple[int, int]],
    share: int,
    report: Callable[[str], None],
    slowdown: Mapping[int, float],
) -> list[float] | None:
    length = min((length for _, length in points), default=0)
    n = min(share, max((n for n, at in points if at == length), default=0)) // 2
    if n == 0:
        return None
    if start is None:
        log.warning(_UNPRICED, "the strategy (sync.name) has ranks that serve, and trial processes are workers only")
        return None
    report(f"timing steps of one micro-batch and of two, {2 * n} samples x {length} tokens")
    with start() as fresh:
        replies = fresh.ask_all({"op": "further", "n": n, "length": length, "repeats": FURTHER_REPEATS}, together=True)
    if any(reply is None for reply in replies):
        ended = "a trial process ended while steps of two were timed, the ranks' logs in the run folder's logs/ say why"
        log.warning(_UNPRICED, ended)
        return None
    return [ms * slowdown.get(rank, 1.0) for rank, ms in enumerate(_answered(fresh, replies))]


def _answered(children: Children, replies: Sequence[Reply | None]) -> list[Any]:
    """The milliseconds that the ranks answered: a number of each, or one per repeat."""
    if any(reply is None for reply in replies):
        what = "its trial process ended while it was being timed"
        raise children.gone_without_answer(what, "See its log, and probe again.")
    return [reply["ms"] for reply in replies if reply is not None]


def rank_speeds(measured: Sequence[tuple[int, GridPoint]], workers: int, slowdown: Mapping[int, float]) -> list[float]:
    """Speed of each worker; 1 for the fastest.

    Args:
        measured: every rank's times, or, of virtual ranks, the first one's alone.
        workers: ranks that train (G).
        slowdown: rank to factor by which its times are stretched; all that virtual ranks of one device differ in.
    """
    totals: dict[int, float] = defaultdict(float)
    for rank, point in measured:
        totals[rank] += point.ms
    if len(totals) < workers:
        totals = {rank: totals[0] / slowdown.get(0, 1.0) * slowdown.get(rank, 1.0) for rank in range(workers)}
    fastest = min(totals.values())
    return [fastest / totals[rank] for rank in range(workers)]


def at_full_speed(measured: Sequence[tuple[int, GridPoint]], speeds: FloatArray | None) -> list[tuple[int, GridPoint]]:
    """The times as the fastest rank would have had them; as they are where all ranks are alike (None)."""
    if speeds is None:
        return list(measured)
    return [(rank, GridPoint(p.n, p.length, p.ms * float(speeds[rank]))) for rank, p in measured]


def further_at_full_speed(further: Sequence[float] | None, speeds: FloatArray | None) -> float | None:
    """The price of further micro-batches as the fastest rank would have had it, ms: the median over ranks timed."""
    if further is None:
        return None
    return max(0.0, float(np.median(np.array(further) * (1.0 if speeds is None else speeds[: len(further)]))))


def over_ranks(measured: Sequence[tuple[int, GridPoint]]) -> list[GridPoint]:
    """One point per shape: the median over ranks."""
    by_shape: dict[tuple[int, int], list[float]] = defaultdict(list)
    for _, point in measured:
        by_shape[point.n, point.length].append(point.ms)
    return [GridPoint(n, length, statistics.median(times)) for (n, length), times in sorted(by_shape.items())]


def timing_rows(measured: Sequence[tuple[int, GridPoint]], seed: int) -> list[TimingRow]:
    """The measured points for the record, each marked whether the accuracies were judged on it."""
    _, held_out = split(over_ranks(measured), seed)
    shapes = {(point.n, point.length) for point in held_out}
    return [
        TimingRow(rank=rank, n=p.n, length=p.length, ms=p.ms, held_out=(p.n, p.length) in shapes)
        for rank, p in measured
    ]


def fit_cost(
    measured: Sequence[tuple[int, GridPoint]], seed: int, attention_a: float, further_ms: float | None = None
) -> CostFit:
    """The cost model of all points, and every model's accuracy on the points held out of a second fit."""
    points = over_ranks(measured)
    model = fit_measured(points)
    return CostFit(
        alpha_ms=model.alpha,
        beta_ms_per_token=model.beta,
        gamma_ms_per_token2=model.gamma,
        further_ms=further_ms,
        heldout=judge(points, seed, attention_a),
    )


class SplitStep:
    """Training steps whose share is one micro-batch, or the same samples in two.

    Args:
        config: resolved settings.
        workload: where the model and the loss come from.
        device: where to run.
    """

    def __init__(self, config: Config, workload: Workload, device: torch.device) -> None:
        self._workload = workload
        self._timer = StepTimer(device)
        self._replica = Replica(config, workload, device, self._timer, build_strategy(config, device))

    def close(self) -> None:
        """Let go of the process group."""
        self._replica.strategy.close()

    def ms(self, n: int, length: int, micro_batches: int) -> float:
        """Milliseconds of a step of so many micro-batches of `n` samples of `length` tokens, data left out."""
        batch = shaped_batch(self._workload, n, length, self._replica.device)
        self._timer.clock.synchronise()
        start = time.perf_counter()
        self._replica.compute([batch] * micro_batches, lambda: 1 / (batch.weight * micro_batches))
        self._replica.update()
        self._timer.clock.synchronise()
        self._timer.take_phases()
        self._replica.strategy.wire.take()
        return (time.perf_counter() - start) * 1e3

    def price(self, n: int, length: int, repeats: int) -> float:
        """Milliseconds that a step of two micro-batches of `n` samples takes longer than one of `2 * n`.

        The median of pairs, timed in blocks of one kind in ABBA order: a step pays for what the one before left in the
        allocator, so that kinds that take turns look alike, and a drift of the machine falls on both. Lengths change
        within a block, as they do in training.

        Args:
            n: samples of one of two micro-batches.
            length: longest that is tried, padded tokens.
            repeats: steps of a block that count.
        """
        known = self._workload.train.lengths
        lengths = np.minimum(np.random.default_rng(0).choice(known, size=repeats), length).tolist()

        def block(micro_batches: int) -> list[float]:
            size = 2 * n // micro_batches
            times = [self.ms(size, drawn, micro_batches) for drawn in (*lengths[:SETTLING], *lengths)]
            return times[SETTLING:]

        one, two, two_again, one_again = (block(micro_batches) for micro_batches in (1, 2, 2, 1))
        return statistics.median(b - a for a, b in zip(one + one_again, two + two_again, strict=True))


def split_price_ms(config: Config, workload: Workload, device: torch.device, shape: tuple[int, int, int]) -> float:
    """`SplitStep.price` of (n, length, repeats); the model and its buckets are gone afterwards."""
    with closing(SplitStep(config, workload, device)) as step:
        return step.price(*shape)
