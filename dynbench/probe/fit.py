"""Cost models of the measured step, fitted and judged on points held out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dynbench.runs.probe_record import AccuracyRow
from dynbench.schedule.cost import CostModel
from dynbench.schedule.plan import FloatArray, IntArray

Predictor = Callable[[IntArray, IntArray], FloatArray]


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One measured point: a micro-batch of `n` samples of `length` tokens took `ms` (median over repeats)."""

    n: int
    length: int
    ms: float


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
    n = np.array([point.n for point in points], dtype=np.int64)
    length = np.array([point.length for point in points], dtype=np.int64)
    return n, length, np.array([point.ms for point in points], dtype=np.float64)


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
    by_length = {
        length: sorted((point.n, point.ms) for point in points if point.length == length)
        for length in sorted({point.length for point in points})
    }
    lengths = np.array(list(by_length), dtype=np.float64)

    def at(length: int, n: int) -> float:
        counts = np.array([count for count, _ in by_length[length]], dtype=np.float64)
        times = np.array([ms for _, ms in by_length[length]])
        if n > counts[-1]:
            return float(times[-1] * n / counts[-1])
        return float(np.interp(n, counts, times))

    def one(n: int, length: int) -> float:
        if length >= lengths[-1]:
            return at(int(lengths[-1]), n) * length / float(lengths[-1])
        if length <= lengths[0]:
            return at(int(lengths[0]), n)
        above = int(np.searchsorted(lengths, length, side="left"))
        low, high = int(lengths[above - 1]), int(lengths[above])
        share = (length - low) / (high - low)
        return (1 - share) * at(low, n) + share * at(high, n)

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
    judged: dict[str, AccuracyRow | None] = {
        model.cost_type: accuracy(fit_proxy(fitted, model), held_out) for model in proxies
    }
    judged["measured"] = accuracy(fit_measured(fitted).cost, held_out)
    judged["table"] = accuracy(table(fitted), held_out)
    return judged
