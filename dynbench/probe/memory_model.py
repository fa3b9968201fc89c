"""Peak memory of a training step as a function of the micro-batch, to answer lengths between the probed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dynbench.probe.fit import nonnegative_least_squares


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """A trial that fitted: `n` samples of `length` tokens peaked at `peak_mb`."""

    n: int
    length: int
    peak_mb: float


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """`fixed + per_sample*n + per_length*L + per_token*n*L + per_square*n*L**2`, in MB, all coefficients >= 0."""

    fixed_mb: float
    per_sample_mb: float
    per_length_mb: float
    per_token_mb: float
    per_square_mb: float
    mape: float
    """Mean absolute relative error over the points it was fitted to."""
    tokens_only_mape: float
    """The same for the memory proxy `fixed + per_token*n*L`, padded tokens alone."""

    def peak_mb(self, n: float, length: float) -> float:
        """Predicted peak of a micro-batch, MB."""
        return (
            self.fixed_mb
            + self.per_sample_mb * n
            + self.per_length_mb * length
            + (self.per_token_mb + self.per_square_mb * length) * n * length
        )

    def largest(self, length: int, limit_mb: float) -> int:
        """Most samples of `length` whose predicted peak stays within the limit; 0 when none does."""
        per_sample = self.per_sample_mb + (self.per_token_mb + self.per_square_mb * length) * length
        room = limit_mb - self.fixed_mb - self.per_length_mb * length
        if room < 0:
            return 0
        return int(room // per_sample) if per_sample > 0 else 2**31


def fit_memory(points: Sequence[MemoryPoint]) -> MemoryModel | None:
    """The model of the points that fitted; None with fewer than three of them."""
    if len(points) < 3:
        return None
    n = np.array([point.n for point in points], dtype=np.float64)
    length = np.array([point.length for point in points], dtype=np.float64)
    peak = np.array([point.peak_mb for point in points], dtype=np.float64)
    ones = np.ones_like(n)
    design = np.column_stack([ones, n, length, n * length, n * length**2])
    weights = 1.0 / peak**2
    full = nonnegative_least_squares(design, peak, weights)
    proxy = nonnegative_least_squares(design[:, [0, 3]], peak, weights)

    def error(columns: np.ndarray, coefficients: np.ndarray) -> float:
        return float(np.mean(np.abs(columns @ coefficients - peak) / peak))

    fixed, per_sample, per_length, per_token, per_square = map(float, full)
    return MemoryModel(
        fixed,
        per_sample,
        per_length,
        per_token,
        per_square,
        mape=error(design, full),
        tokens_only_mape=error(design[:, [0, 3]], proxy),
    )


def between(model: MemoryModel | None, length: int, limit_mb: float, capacity: Mapping[int, int | None]) -> int | None:
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
    predicted = safe if model is None else model.largest(length, limit_mb)
    upper = capacity[max(shorter)] if shorter else None
    return max(safe, predicted if upper is None else min(predicted, upper))
