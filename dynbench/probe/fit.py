"""Steps timed at many sizes; the cost model and the memory model fitted to them, and what these predict."""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins.policies import whole_windows
from dynbench.probe.children import Children, Reply, Report, StartChildren
from dynbench.runs.probe_record import AccuracyRow, AllReduce, CapacityRow, CostFit, MemoryFit, TimingRow, TrialRow
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_cost
from dynbench.schedule.plan import FloatArray, IntArray
from dynbench.schedule.policy import Planner, Problem
from dynbench.units import mb

log = logging.getLogger(__name__)

TERMS = ("fixed_mb", "per_sample_mb", "per_length_mb", "per_token_mb", "per_square_mb")
"""Coefficients of 1, n, L, n*L and n*L**2."""
POLICIES = ("partition", "prefix", "window")
WINDOW = 8
STEPS = 40
"""Optimizer steps of a prediction, in whole windows."""
LARGEST_BATCH = 4096
"""Global batches above it are tried only as far as `LEAST_PER_RANK` asks for, samples."""
LEAST_PER_RANK = 8
"""Samples per rank up to which global batches are tried, however many ranks there are."""
REDUCE_REPEATS = 7
FURTHER_REPEATS = 8
_UNPRICED = "probe: what a further micro-batch costs is unknown: %s; schedule.further_ms sets the price"


def peak_mb(model: MemoryFit, n: float, length: float) -> float:
    """Predicted peak of a micro-batch, MB."""
    per_length, per_token = model.per_length_mb * length, model.per_token_mb + model.per_square_mb * length
    return model.fixed_mb + model.per_sample_mb * n + per_length + per_token * n * length


def largest(model: MemoryFit, length: int, limit_mb: float) -> int:
    """Most samples of `length` whose predicted peak stays within the limit; 0 when none does."""
    per_sample = model.per_sample_mb + (model.per_token_mb + model.per_square_mb * length) * length
    room = limit_mb - model.fixed_mb - model.per_length_mb * length
    if room < 0:
        return 0
    return int(room // per_sample) if per_sample > 0 else 2**31


def fit_memory(trials: Sequence[TrialRow]) -> MemoryFit | None:
    """The model of the trials that passed and have a peak; None with fewer than three of them."""
    points = [(t.n, t.length, t.peak_mem_mb) for t in trials if t.fits and t.peak_mem_mb]
    if len(points) < 3:
        return None
    n, length, peak = np.array(points, dtype=np.float64).T
    design = np.column_stack([np.ones_like(n), n, length, n * length, n * length**2])

    def fitted(columns: FloatArray) -> tuple[FloatArray, float]:
        found = nonnegative_least_squares(columns, peak, 1.0 / peak**2)
        return found, float(np.mean(np.abs(columns @ found - peak) / peak))

    (full, mape), (_, tokens_only_mape) = fitted(design), fitted(design[:, [0, 3]])
    terms = dict(zip(TERMS, full.tolist(), strict=True))
    return MemoryFit(**terms, mape=mape, tokens_only_mape=tokens_only_mape)


def between(model: MemoryFit | None, length: int, limit_mb: float, capacity: Mapping[int, int | None]) -> int | None:
    """Capacity at any length: the probed one at a grid length, else the model's within the probed neighbours.

    Capacity falls with length, so what was tested at the next longer length is safe, and what was tested at the next
    shorter one must not be exceeded; beyond the longest probed length nothing is known and 0 is returned.

    Args:
        model: predicts peaks; None where too little was measured.
        length: padded tokens.
        limit_mb: predicted peaks stay within it.
        capacity: probed length to samples; None where no limit was found, which then holds for all shorter lengths.
    """
    if length in capacity:
        return capacity[length]
    longer = [grid for grid in capacity if grid > length]
    if not longer:
        return 0
    safe = capacity[min(longer)]
    if safe is None:
        return None
    shorter = [grid for grid in capacity if grid < length]
    predicted = safe if model is None else largest(model, length, limit_mb)
    upper = capacity[max(shorter)] if shorter else None
    return max(safe, predicted if upper is None else min(predicted, upper))


Predictor = Callable[[IntArray, IntArray], FloatArray]


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One measured point: a micro-batch of `n` samples of `length` tokens took `ms` (median over repeats) on a rank."""

    n: int
    length: int
    ms: float
    rank: int = 0


def nonnegative_least_squares(design: FloatArray, target: FloatArray, weights: FloatArray) -> FloatArray:
    """Coefficients x >= 0 that minimise sum(w * (A x - y)**2).

    Args:
        design: shape [points, columns]; of any scales.
        target: shape [points].
        weights: shape [points], positive.

    Returns:
        shape [columns].
    """
    root = np.sqrt(weights)
    scaled = design * root[:, None]
    size = np.linalg.norm(scaled, axis=0)
    size[size == 0] = 1.0
    from scipy.optimize import nnls  # half a second, which commands that fit nothing do not wait for

    solution, _ = nnls(scaled / size, target * root)
    return np.asarray(solution / size, dtype=np.float64)


def columns_of(points: Sequence[GridPoint]) -> tuple[IntArray, IntArray, FloatArray]:
    """Points as arrays: samples, lengths, milliseconds."""
    n, length, ms = np.array([(point.n, point.length, point.ms) for point in points], dtype=np.float64).T
    return n.astype(np.int64), length.astype(np.int64), ms


def fit_measured(points: Sequence[GridPoint]) -> CostModel:
    """`alpha + beta*n*L + gamma*n*L**2` with non-negative coefficients, weighted for relative error."""
    n, length, ms = columns_of(points)
    tokens = (n * length).astype(np.float64)
    design = np.column_stack([np.ones_like(tokens), tokens, tokens * length])
    alpha, beta, gamma = nonnegative_least_squares(design, ms, 1.0 / ms**2)
    return CostModel("measured", alpha=alpha, beta=beta, gamma=gamma)


def fit_proxy(points: Sequence[GridPoint], model: CostModel) -> Predictor:
    """A cost proxy scaled to milliseconds by its one best factor, so that its shape alone is judged."""
    n, length, ms = columns_of(points)
    shape = model.cost(n, length)
    scale = float(nonnegative_least_squares(shape[:, None], ms, 1.0 / ms**2)[0])
    return lambda count, longest: scale * model.cost(count, longest)


def table(points: Sequence[GridPoint]) -> Predictor:
    """Linear interpolation over the sample count within the nearest measured lengths, then over length.

    Outside the grid the nearest edge's cost is scaled with the tokens, so that the table never goes flat.
    """
    lengths = sorted({point.length for point in points})
    by_length = [sorted((point.n, point.ms) for point in points if point.length == length) for length in lengths]

    def one(n: int, length: int) -> float:
        costs = []
        for measured in by_length:
            counts, ms = zip(*measured, strict=True)
            costs.append(max(1.0, n / counts[-1]) * np.interp(n, counts, ms))
        return max(1.0, length / lengths[-1]) * float(np.interp(length, lengths, costs))

    return lambda count, longest: np.array([one(int(n), int(length)) for n, length in zip(count, longest, strict=True)])


def split(points: Sequence[GridPoint], seed: int, held_out: float = 0.25) -> tuple[list[GridPoint], list[GridPoint]]:
    """Fitted and held-out points; each length's smallest and largest micro-batch stay in the fit.

    So nothing is judged by extrapolation.
    """
    counts = {point.length: [p.n for p in points if p.length == point.length] for point in points}
    edges = [p for p in points if p.n in (min(counts[p.length]), max(counts[p.length]))]
    inner = [p for p in points if p not in edges]
    order = np.random.default_rng(seed).permutation(len(inner))
    wanted = max(1, round(held_out * len(points))) if len(inner) > 1 else 0
    chosen = {int(i) for i in order[:wanted]}
    return edges + [p for i, p in enumerate(inner) if i not in chosen], [inner[i] for i in sorted(chosen)]


def accuracy(predict: Predictor, held_out: Sequence[GridPoint]) -> AccuracyRow | None:
    """Error and rank correlation on held-out points; None with fewer than three, or without any spread."""
    if len(held_out) < 3:
        return None
    n, length, ms = columns_of(held_out)
    predicted = predict(n, length)
    mape = float(np.mean(np.abs(predicted - ms) / ms))
    if np.ptp(predicted) == 0 or np.ptp(ms) == 0:
        return None
    from scipy.stats import spearmanr

    return AccuracyRow(mape=mape, rank_correlation=float(spearmanr(predicted, ms).statistic))


def judge(points: Sequence[GridPoint], seed: int, attention_a: float) -> dict[str, AccuracyRow | None]:
    """Accuracy of every cost model on held-out points: the three proxies, the fit, and the interpolated table."""
    fitted, held_out = split(points, seed)
    proxies = [CostModel("tokens"), CostModel("tokens_sq"), CostModel("attention", attention_a=attention_a)]
    predictors: dict[str, Predictor] = {model.cost_type: fit_proxy(fitted, model) for model in proxies}
    predictors |= {"measured": fit_measured(fitted).cost, "table": table(fitted)}
    return {name: accuracy(predict, held_out) for name, predict in predictors.items()}


def predicted_step_ms(policy: str, problem: Problem, overhead_ms: float) -> float | None:
    """Mean predicted step: the slowest rank's cost plus what every step pays alike; None where it cannot be planned."""
    # Whole windows, for all policies the same.
    steps = whole_windows(STEPS, (WINDOW,), len(problem.lengths) // problem.global_batch)
    try:
        planner = Planner(policy, problem)
        slowest = [step_cost(planner.plan(step), problem) for step in range(steps)]
    except (UsageError, NothingFits):
        return None
    return float(np.mean(slowest)) + overhead_ms


def predicted_speedups(problem: Problem, overhead_ms: float) -> dict[str, float | None]:
    """Static's predicted step over each policy's; None where either cannot be planned.

    Args:
        problem: with the measured cost model, the capacities found and the relative speeds.
        overhead_ms: time of a step outside the ranks' own work, such as the all-reduce.
    """
    static = predicted_step_ms("static", problem, overhead_ms)
    speedups: dict[str, float | None] = {}
    for policy in POLICIES:
        changed = replace(problem, window=WINDOW if policy == "window" else 1, buffer=problem.global_batch)
        planned = predicted_step_ms(policy, changed, overhead_ms)
        speedups[policy] = None if static is None or planned is None else static / planned
    return speedups


def break_even_batch(problem: Problem, overhead_ms: float, worth: float) -> tuple[int | None, tuple[int, ...]]:
    """The smallest global batch at which `partition` is predicted to gain over `worth`.

    Tried are G, 2G, 4G, … samples, which `static` can deal equally whatever the number of ranks G, up to 4,096 (8 per
    rank where that is more) and to the size of the data.

    Args:
        problem: as in `predicted_speedups`; its capacities are left out, since they bound B for another reason.
        overhead_ms: as in `predicted_speedups`.
        worth: gain below which nothing counts as gained, a part (0.02 is 2 %).

    Returns:
        The batch, None if none of those tried is predicted to gain; and what was compared until then, ascending.
    """
    ranks = problem.workers
    largest = min(len(problem.lengths), max(LARGEST_BATCH, LEAST_PER_RANK * ranks))
    tried: list[int] = []
    for global_batch in (ranks * 2**exponent for exponent in range((largest // ranks).bit_length())):
        sized = replace(problem, global_batch=global_batch, capacity=Capacity())
        static, dynamic = (predicted_step_ms(policy, sized, overhead_ms) for policy in ("static", "partition"))
        if static is None or dynamic is None:
            continue
        tried.append(global_batch)
        if static / dynamic > 1.0 + worth:
            return global_batch, tuple(tried)
    return None, tuple(tried)


class Timings(NamedTuple):
    """What the ranks were timed at."""

    points: list[GridPoint]
    """Median step time of every rank."""
    further: list[float] | None
    """What every micro-batch of a step after its first costs beside its samples, ms, shape [G]; None where the
    strategy has servers, too few samples fit to tell, or a rank ended while it was timed."""
    allreduce: AllReduce


def grid(rows: Sequence[CapacityRow], ceiling: int) -> list[tuple[int, int]]:
    """(samples, length) pairs that fit on every rank: powers of two up to the smallest capacity, and that capacity."""
    points = []
    for length in sorted({row.length for row in rows}):
        largest = min(ceiling, *(row.max_batch for row in rows if row.length == length))
        counts = {2**exponent for exponent in range(largest.bit_length())} | {largest} if largest else set()
        points += [(n, length) for n in sorted(counts)]
    return points


def time_grid(
    start: StartChildren,
    start_splits: StartChildren | None,
    points: Sequence[tuple[int, int]],
    repeats: int,
    seed: int,
    report: Report,
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
        report: called with what is being timed.
        slowdown: rank to factor.
        share: samples of a rank in a step (B / G), what splitting is timed with as far as they fit.

    Raises:
        WorkerFailed: a trial process ended without an answer.
    """
    measured: list[GridPoint] = []
    with start() as children:
        for done, index in enumerate(np.random.default_rng(seed).permutation(len(points))):
            n, length = points[index]
            report(f"timing {n} samples x {length} tokens ({done + 1} of {len(points)})")
            times = _ms_of(children, children.ask_all({"op": "time", "n": n, "length": length, "repeats": repeats}))
            for rank, repeated in enumerate(times):
                ms = statistics.median(repeated) * slowdown.get(rank, 1.0)
                measured.append(GridPoint(n, length, ms, rank))
        reduced = _ms_of(children, children.ask_all({"op": "reduce", "repeats": REDUCE_REPEATS}, collective=True))
    further = _time_further(start_splits, points, share, report, slowdown)
    allreduce = AllReduce(megabytes=mb(children.gradient_bytes), ms=max(reduced), world_size=children.world_size)
    return Timings(measured, further, allreduce)


def _time_further(
    start: StartChildren | None,
    points: Sequence[tuple[int, int]],
    share: int,
    report: Report,
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
        replies = fresh.ask_all(
            {"op": "further", "n": n, "length": length, "repeats": FURTHER_REPEATS}, collective=True
        )
    if None in replies:
        ended = "a trial process ended while steps of two were timed, the ranks' logs in the run folder's logs/ say why"
        log.warning(_UNPRICED, ended)
        return None
    return [ms * slowdown.get(rank, 1.0) for rank, ms in enumerate(_ms_of(fresh, replies))]


def _ms_of(children: Children, replies: Sequence[Reply | None]) -> list[Any]:
    """The milliseconds in the ranks' replies: a number of each, or one per repeat."""
    if None in replies:
        what = "its trial process ended while it was being timed"
        raise children.failed(children.gone[0], what, "See its log, and probe again.")
    return [reply["ms"] for reply in replies if reply is not None]


def rank_speeds(measured: Sequence[GridPoint], workers: int, slowdown: Mapping[int, float]) -> list[float]:
    """Speed of each worker; 1 for the fastest.

    Args:
        measured: every rank's times, or, of virtual ranks, the first one's alone.
        workers: ranks that train (G).
        slowdown: rank to factor by which its times are stretched; all that virtual ranks of one device differ in.
    """
    totals: dict[int, float] = defaultdict(float)
    for point in measured:
        totals[point.rank] += point.ms
    if len(totals) < workers:
        totals = {rank: totals[0] / slowdown.get(0, 1.0) * slowdown.get(rank, 1.0) for rank in range(workers)}
    fastest = min(totals.values())
    return [fastest / totals[rank] for rank in range(workers)]


def at_full_speed(measured: Sequence[GridPoint], speeds: FloatArray | None) -> list[GridPoint]:
    """The times as the fastest rank would have had them; as they are where all ranks are alike (None)."""
    if speeds is None:
        return list(measured)
    return [replace(point, ms=point.ms * float(speeds[point.rank])) for point in measured]


def further_at_full_speed(further: Sequence[float] | None, speeds: FloatArray | None) -> float | None:
    """The price of further micro-batches as the fastest rank would have had it, ms: the median over ranks timed."""
    if further is None:
        return None
    return max(0.0, float(np.median(np.array(further) * (1.0 if speeds is None else speeds[: len(further)]))))


def over_ranks(measured: Sequence[GridPoint]) -> list[GridPoint]:
    """One point per shape: the median over ranks."""
    by_shape: dict[tuple[int, int], list[float]] = defaultdict(list)
    for point in measured:
        by_shape[point.n, point.length].append(point.ms)
    return [GridPoint(n, length, statistics.median(times)) for (n, length), times in sorted(by_shape.items())]


def timing_rows(measured: Sequence[GridPoint], seed: int) -> list[TimingRow]:
    """The measured points for the record, each marked whether the accuracies were judged on it."""
    _, held_out = split(over_ranks(measured), seed)
    shapes = {(point.n, point.length) for point in held_out}
    return [
        TimingRow(rank=p.rank, n=p.n, length=p.length, ms=p.ms, held_out=(p.n, p.length) in shapes) for p in measured
    ]


def fit_cost(measured: Sequence[GridPoint], seed: int, attention_a: float, further_ms: float | None = None) -> CostFit:
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
