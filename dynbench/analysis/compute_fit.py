"""The cost of a run's compute, fitted to its own rows, and the relative speeds of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dynbench.analysis.merge import MergedRun

FloatArray = NDArray[np.float64]

SPEEDS = "speeds.csv"
"""Estimates of a run with `schedule.speeds=auto`, in its folder: step, rank, speed."""

_COLUMNS = ("compute_ms", "micro_batches", "real_tokens", "padded_tokens")


@dataclass(frozen=True)
class ComputeRows:
    """Compute of every rank in the measured steps; all arrays of shape [rows].

    Attributes:
        speeds: of the workers that have rows, relative to the fastest of all, shape [workers].
        speed: of the row's worker.
        compute_ms: forward and backward, as measured.
        micro_batches, real_tokens, padded_tokens: of the row.
    """

    speeds: FloatArray
    speed: FloatArray
    compute_ms: FloatArray
    micro_batches: FloatArray
    real_tokens: FloatArray
    padded_tokens: FloatArray


@dataclass(frozen=True, slots=True)
class ComputeFit:
    """Compute time at full speed: `alpha` per micro-batch and `beta` per padded token, ms."""

    alpha: float
    beta: float


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
    """Least squares over the rows, each brought to full speed; without alpha where that came out negative.

    Returns:
        None where the rows do not tell alpha and beta apart, as where all have as many tokens, and where times do not
        grow with padded tokens.
    """
    full_speed_ms, tokens = rows.compute_ms * rows.speed, rows.padded_tokens
    design = np.stack([rows.micro_batches, tokens], axis=1)
    (alpha, beta), _, rank, _ = np.linalg.lstsq(design, full_speed_ms, rcond=None)
    if rank < 2:
        return None
    if alpha < 0:
        alpha, beta = 0.0, (tokens @ full_speed_ms) / (tokens @ tokens)
    return ComputeFit(float(alpha), float(beta)) if beta > 0 else None


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
