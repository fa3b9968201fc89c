"""The cost of a run's compute, fitted to its own rows, and the relative speeds of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from dynbench.analysis.merge import MergedRun

FloatArray = NDArray[np.float64]

SPEEDS = "speeds.csv"
"""Estimates of a run with `schedule.speeds=auto`, in its folder: step, rank, speed."""

_COLUMNS = ("compute_ms", "micro_batches", "real_tokens", "padded_tokens", "real_tokens2", "padded_tokens2")


@dataclass(frozen=True)
class ComputeRows:
    """Compute of every rank in the measured steps; all arrays of shape [rows].

    Attributes:
        speeds: of the workers that have rows, relative to the fastest of all, shape [workers].
        speed: of the row's worker.
        compute_ms: forward and backward, as measured.
        micro_batches, real_tokens, padded_tokens: of the row.
        real_tokens2, padded_tokens2: of the row, tokens squared; NaN in rows of earlier versions.
    """

    speeds: FloatArray
    speed: FloatArray
    compute_ms: FloatArray
    micro_batches: FloatArray
    real_tokens: FloatArray
    padded_tokens: FloatArray
    real_tokens2: FloatArray
    padded_tokens2: FloatArray

    @property
    def unpadded(self) -> bool:
        """Whether all that was computed are real tokens."""
        return bool(np.all(self.padded_tokens == self.real_tokens))

    @property
    def with_squares(self) -> bool:
        """Whether squared lengths were recorded."""
        return bool(np.isfinite(self.padded_tokens2).all() and np.isfinite(self.real_tokens2).all())


@dataclass(frozen=True, slots=True)
class ComputeFit:
    """Compute time at full speed, ms: per micro-batch, per token, and per token and token of its length."""

    alpha: float
    beta: float
    gamma: float

    def of_tokens(self, tokens: ArrayLike, tokens2: ArrayLike) -> FloatArray:
        """What tokens take beside alpha, ms; both sums broadcast, and the second is not looked at without gamma."""
        linear = self.beta * np.asarray(tokens, dtype=np.float64)
        return linear + self.gamma * np.asarray(tokens2, dtype=np.float64) if self.gamma else linear


def compute_rows(run: MergedRun, speeds: FloatArray) -> ComputeRows:
    """The measured, complete steps' rows of the ranks that train.

    Args:
        run: the run.
        speeds: relative speeds of the workers, shape [G].
    """
    rows = (
        run.worker_rows()
        .join(run.measured.lazy().select("step"), on="step", how="semi")
        .select("worker", *(pl.col(name).cast(pl.Float64) for name in _COLUMNS))
        .collect()
    )
    workers = rows["worker"].to_numpy()
    return ComputeRows(speeds[np.unique(workers)], speeds[workers], *(rows[name].to_numpy() for name in _COLUMNS))


def fit_compute(rows: ComputeRows) -> ComputeFit | None:
    """Least squares over the rows, each brought to full speed, with no coefficient below 0.

    Returns:
        None where the rows do not tell the coefficients apart, as where all have as many tokens, where times do not
        grow with padded tokens, and of rows of earlier versions.
    """
    from scipy.optimize import nnls

    work = np.stack([rows.micro_batches, rows.padded_tokens, rows.padded_tokens2], axis=1)
    if not rows.with_squares:
        return None
    terms = work.shape[1]
    scale = np.maximum(work.max(axis=0), 1.0)
    if rows.unpadded and np.linalg.matrix_rank(work / scale) < terms:
        terms = 2  # samples of one length, which real tokens alone tell as well
    design = work[:, :terms] / scale[:terms]
    if np.linalg.matrix_rank(design) < terms:
        return None
    # The triangle of the QR decomposition has the same solution, however many the rows.
    orthogonal, triangle = np.linalg.qr(design)
    found, _ = nnls(triangle, orthogonal.T @ (rows.compute_ms * rows.speed))
    alpha, beta, gamma = np.append(found / scale[:terms], 0.0)[:3]
    return ComputeFit(float(alpha), float(beta), float(gamma)) if beta + gamma > 0 else None


def relative_speeds(*runs: MergedRun) -> FloatArray:
    """Speed of each worker, 1 for the fastest, shape [G], as the first source that knows tells.

    That is the stretching asked for in `launch.slowdown`, then `schedule.speeds`, then the last estimate of a run; else
    ranks count as equal.
    """
    workers = runs[0].workers
    found = next((speeds for run in runs for speeds in _known_speeds(run, workers)), np.ones(workers))
    relative: FloatArray = found / found.max()
    return relative


def _known_speeds(run: MergedRun, workers: int) -> Iterator[FloatArray]:
    slowdown, speeds = run.facts.config.launch.slowdown, run.facts.config.schedule.speeds
    if slowdown:
        first = run.facts.servers
        yield 1 / np.array([slowdown.get(first + worker, 1.0) for worker in range(workers)])
    if isinstance(speeds, tuple) and len(speeds) == workers:
        yield np.array(speeds, dtype=np.float64)
    file = run.run.path / SPEEDS
    if file.is_file():
        estimates = pl.read_csv(file).group_by("rank").agg(pl.col("speed").last()).sort("rank")
        if estimates.height == workers:
            yield estimates["speed"].to_numpy().astype(np.float64)
