"""How much of a run's step time is no needed work, and what it is spent on instead.

S is the measured over the ideal step time, and the waste 1 - 1/S is the part of the step time that is not ideal, as the
model FLOPs utilization (PaLM, arXiv:2204.02311, section 4.1) is the part that is, with the run's own fitted cost in
place of the device's peak. A step's measured time is the run's time over its steps. Its ideal time is that of the same
samples without padding, waiting and exposed communication, planning or loading data, one micro-batch per rank, spread
over the ranks as their speeds are:

    ideal = (G*alpha + beta*real + gamma*real²) / sum(speeds) + optimizer

with alpha per micro-batch, beta per token and gamma per token and token of its length fitted to the run's own compute
(`fit_compute`; real² is the sum of the squared lengths) and the optimizer's time as measured, mean over ranks: updating
the weights is needed work. Where nothing is padded and every rank ran one micro-batch, the needed compute is the
measured one, fit or not. The parts, as shares of the step time:

    padding       (beta * (padded - real) + gamma * (padded² - real²)) / sum(speeds)
    waiting       sync less exposed communication, mean over ranks; and what the compute lasts longer, by the fit, than
                  if it were dealt in proportion to the ranks' speeds, nothing for equal ranks
    exposed_comm  sync of the last rank to arrive; of virtual ranks that of their communication model
    planning      plan, mean over ranks
    data          data, mean over ranks
    compute       what the run's own ideal is above the one that arms of the same work share (`recovery`); 0 in a
                  run by itself
    other         the rest: time in no phase, ranks that end a block before the last one does, launching the
                  micro-batches beyond one per rank, and the residual of the fit, because of which it may fall below 0

They add up to 1 - 1/S. What a pass waits for other ranks is sync; what runs beside one on a GPU is in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, TypedDict, cast

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from dynbench.analysis.measure import shown
from dynbench.analysis.merge import MergedRun
from dynbench.runs.phrase import Phrase, PhraseRecord
from dynbench.units import Unit

PARTS = ("padding", "waiting", "exposed_comm", "planning", "data", "compute", "other")
"""What a step's time is spent on that is not needed work, in the order in which it is shown."""

Share = Annotated[float | None, Unit("fraction")]


class Waste(TypedDict):
    """Shares of the step time, which add up to 1 - 1/s; null where no ideal can be stated."""

    s: Annotated[
        float | None, shown("waiting and padding", "times the ideal", "step time, measured over ideal", place=-1)
    ]
    """Measured over ideal step time; the ideal is the same samples without padding, waiting, exposed communication,
    planning and loading data, by a cost fitted to the run's own compute, with the optimizer. In a comparison, arms at
    level `step` or `window` on as many ranks share the least of their ideals; null for the others."""
    padding: Share
    """Computing padded tokens that are none."""
    waiting: Share
    """Waiting for the slowest rank; of unequal ranks, work dealt to slow ones too."""
    exposed_comm: Share
    """Communication that no computing hides."""
    planning: Share
    """Making plans."""
    data: Share
    """Making batches."""
    compute: Share
    """What the ideal by the arm's own compute is above the one it shares with others; 0 in a run by itself."""
    other: Share
    """The rest, micro-batches beyond one per rank and the residual of the fit among it; may be below 0."""
    reason: str | None
    """Why no ideal can be stated."""
    reason_said: PhraseRecord | None
    """The same as a phrase."""


def waste_of(merged: MergedRun) -> Waste:
    """The `waste` object of a summary.

    Returns:
        Where the arms compared share no ideal, `s` and `compute` alone are None.
    """
    if not merged.measured.height:
        return _unknown(Phrase.of("waste.no_step"))
    rows = compute_rows(merged, relative_speeds(merged))
    fit = _needed(rows)
    if fit is None:
        return _unknown(Phrase.of("waste.no_fit") if rows.with_squares else Phrase.of("waste.no_squares"))
    mean_ms = {
        name: float(merged.measured[f"{name}_ms_mean"].sum())
        for name in ("wait", "exposed_comm", "plan", "data", "optimizer")
    }
    ranks, speed = len(rows.speeds), float(rows.speeds.sum())
    computed_ms = fit.of_tokens(rows.padded_tokens, rows.padded_tokens2)
    needed_ms = float(fit.of_tokens(rows.real_tokens, rows.real_tokens2).sum())
    costs = fit.alpha * rows.micro_batches + computed_ms
    ideal = (ranks * merged.measured.height * fit.alpha + needed_ms) / speed + mean_ms["optimizer"]
    ms = {
        "padding": (float(computed_ms.sum()) - needed_ms) / speed,
        "waiting": mean_ms["wait"] + float((costs / rows.speed).sum()) / ranks - float(costs.sum()) / speed,
        "exposed_comm": mean_ms["exposed_comm"],
        "planning": mean_ms["plan"],
        "data": mean_ms["data"],
    }
    time_ms = merged.time_ms
    ms["other"] = time_ms - ideal - sum(ms.values())
    shares = {name: ms.get(name, 0.0) / time_ms for name in PARTS}
    own = cast(Waste, {"s": time_ms / ideal, **shares, "reason": None, "reason_said": None})
    return own if merged.ideal_ms is None else of_shared(own, time_ms, merged.ideal_ms)


def of_shared(own: Waste, time_ms: float, ideal_ms: float) -> Waste:
    """A run's waste by an ideal that it shares with others in place of its own.

    Args:
        own: by its own ideal.
        time_ms: the run's time.
        ideal_ms: of its measured steps, the shared one; nan where it shares none.
    """
    s = own["s"]
    if s is None:
        return own
    if math.isnan(ideal_ms):
        reason = Phrase.of("waste.not_shared")
        return own | {"s": None, "compute": None, "reason": str(reason), "reason_said": reason.record()}
    return own | {"s": time_ms / ideal_ms, "compute": 1 / s - ideal_ms / time_ms}


def _needed(rows: ComputeRows) -> ComputeFit | None:
    """The cost of needed compute; where it is all that was computed, its mean per row stands for a cost."""
    fit = fit_compute(rows)
    if fit is None and rows.unpadded and np.all(rows.micro_batches == 1):
        return ComputeFit(float((rows.compute_ms * rows.speed).mean()), 0.0, 0.0)
    return fit


def _unknown(reason: Phrase) -> Waste:
    return cast(Waste, {**dict.fromkeys(("s", *PARTS)), "reason": str(reason), "reason_said": reason.record()})


def ms_per_kilotoken(waste: Mapping[str, object], time_ms: float, real_tokens: float) -> dict[str, float] | None:
    """The ideal and each of `PARTS` in ms per 1,000 real tokens; None where the waste is not known.

    Args:
        waste: of a summary.
        time_ms: the run's time.
        real_tokens: of its measured steps.
    """
    shares = {name: value for name in ("s", *PARTS) if isinstance(value := waste.get(name), int | float)}
    if len(shares) <= len(PARTS) or not real_tokens:
        return None
    per_share = 1000 * time_ms / real_tokens
    return {"ideal": per_share / shares["s"], **{name: per_share * shares[name] for name in PARTS}}


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
