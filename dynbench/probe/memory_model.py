"""Peak memory of a training step as a function of the micro-batch, to answer lengths between the probed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dynbench.probe.fit import nonnegative_least_squares
from dynbench.runs.probe_record import MemoryFit, TrialRow

TERMS = ("fixed_mb", "per_sample_mb", "per_length_mb", "per_token_mb", "per_square_mb")
"""Coefficients of 1, n, L, n*L and n*L**2."""


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
    weights = 1.0 / peak**2
    full = nonnegative_least_squares(design, peak, weights)
    proxy = nonnegative_least_squares(design[:, [0, 3]], peak, weights)

    def error(columns: np.ndarray, coefficients: np.ndarray) -> float:
        return float(np.mean(np.abs(columns @ coefficients - peak) / peak))

    errors = {"mape": error(design, full), "tokens_only_mape": error(design[:, [0, 3]], proxy)}
    return MemoryFit(**dict(zip(TERMS, full.tolist(), strict=True)), **errors)


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
