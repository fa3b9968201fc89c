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
    compute       what the run's own ideal is above the one that arms of the same work share; 0 in a
                  run by itself
    other         the rest: time in no phase, ranks that end a block before the last one does, launching the
                  micro-batches beyond one per rank, and the residual of the fit, because of which it may fall below 0

They add up to 1 - 1/S. What a pass waits for other ranks is sync; what runs beside one on a GPU is in it.

Arms of equal work share an ideal; `Recovery` is how much of the time beyond it a candidate gives back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, NamedTuple, TypedDict, cast

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from dynbench.analysis.arms import Arm, Pair, pair_launches
from dynbench.analysis.measure import lookup, shown
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.verdict import Level, comparison_level
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
    """The `waste` object of a summary, by the run's own ideal."""
    if not merged.measured.height:
        return _unknown(Phrase.of("waste.no_step"))
    rows = compute_rows(merged, relative_speeds(merged))
    fit = _needed(rows)
    if fit is None:
        return _unknown(Phrase.of("waste.no_fit") if rows.all_of("with_squares") else Phrase.of("waste.no_squares"))
    mean_ms = {
        name: float(merged.measured[f"{name}_ms_mean"].sum())
        for name in ("wait", "exposed_comm", "plan", "data", "optimizer")
    }
    ranks, speed = len(rows.speeds), float(rows.speeds.sum())
    computed_ms = fit.of_tokens(rows.sums["padded_tokens"], rows.sums["padded_tokens2"])
    needed_ms = float(fit.of_tokens(rows.sums["real_tokens"], rows.sums["real_tokens2"]).sum())
    costs = fit.alpha * rows.sums["micro_batches"].to_numpy() + computed_ms
    ideal = (ranks * merged.measured.height * fit.alpha + needed_ms) / speed + mean_ms["optimizer"]
    ms = {
        "padding": (float(computed_ms.sum()) - needed_ms) / speed,
        "waiting": mean_ms["wait"] + float((costs / rows.speeds).sum()) / ranks - float(costs.sum()) / speed,
        "exposed_comm": mean_ms["exposed_comm"],
        "planning": mean_ms["plan"],
        "data": mean_ms["data"],
    }
    time_ms = merged.time_ms
    ms["other"] = time_ms - ideal - sum(ms.values())
    shares = {name: ms.get(name, 0.0) / time_ms for name in PARTS}
    return cast(Waste, {"s": time_ms / ideal, **shares, "reason": None, "reason_said": None})


def _of_shared(own: Waste, time_ms: float, ideal_ms: float) -> Waste:
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
    if fit is None and rows.all_of("unpadded") and rows.all_of("single"):
        return ComputeFit(float((rows.sums["compute_ms"] * rows.speeds).sum()) / rows.height, 0.0, 0.0)
    return fit


def _unknown(reason: Phrase) -> Waste:
    return cast(Waste, {**dict.fromkeys(("s", *PARTS)), "reason": str(reason), "reason_said": reason.record()})


def ms_per_kilotoken(summary: Mapping[str, object]) -> dict[str, float] | None:
    """The ideal and each of `PARTS` in ms per 1,000 real tokens; None where a summary does not know them."""
    time_ms, tokens = lookup(summary, "step_time_ms.total"), lookup(summary, "real_tokens")
    shares = {name: value for name in ("s", *PARTS) if (value := lookup(summary, f"waste.{name}")) is not None}
    if len(shares) <= len(PARTS) or time_ms is None or not tokens:
        return None
    per_share = 1000 * time_ms / tokens
    return {"ideal": per_share / shares.pop("s"), **{part: per_share * share for part, share in shares.items()}}


FloatArray = NDArray[np.float64]

_BLOCK = 2**15
"""Rows that are decomposed at once."""

SPEEDS = "speeds.csv"
"""Estimates of a run with `schedule.speeds=auto`, in its folder: step, rank, speed."""

_TERMS = ("micro_batches", "padded_tokens", "padded_tokens2")
_COLUMNS = (*_TERMS, "real_tokens", "real_tokens2", "compute_ms")


class ComputeRows(NamedTuple):
    """The measured, complete steps' rows of the ranks that train.

    Attributes:
        rows: as they were merged; squares of tokens are null in rows of earlier versions.
        speeds: of the workers that have rows, relative to the fastest of all, shape [workers].
        sums: a row for each of these workers, in order: sums of `_COLUMNS`, the largest of `_TERMS` under `most_`,
            `count` of its rows, and of all of them whether they are `unpadded`, `single` micro-batches and
            `with_squares`.
    """

    rows: pl.LazyFrame
    speeds: FloatArray
    sums: pl.DataFrame

    @property
    def height(self) -> int:
        """How many there are."""
        return int(self.sums["count"].sum())

    def all_of(self, what: str) -> bool:
        """Whether all rows are so."""
        return bool(self.sums[what].all())


class ComputeFit(NamedTuple):
    """Compute time at full speed, ms: per micro-batch, per token, and per token and token of its length."""

    alpha: float
    beta: float
    gamma: float

    def of_tokens(self, tokens: ArrayLike, tokens2: ArrayLike) -> FloatArray:
        """What tokens take beside alpha, ms; both sums broadcast, and the second is not looked at without gamma."""
        linear = self.beta * np.asarray(tokens, dtype=np.float64)
        return linear + self.gamma * np.asarray(tokens2, dtype=np.float64) if self.gamma else linear


def compute_rows(run: MergedRun, speeds: FloatArray) -> ComputeRows:
    """The rows of a run, of whose workers these are the relative speeds, shape [G]."""
    rows = run.measured_rows()
    sums = rows.group_by("worker").agg(
        pl.col(_COLUMNS).cast(pl.Float64).sum(),
        pl.col(_TERMS).cast(pl.Float64).max().name.prefix("most_"),
        count=pl.len(),
        unpadded=(pl.col("padded_tokens") == pl.col("real_tokens")).all(),
        single=(pl.col("micro_batches") == 1).all(),
        with_squares=pl.all_horizontal(pl.col("real_tokens2", "padded_tokens2").is_not_null()).all(),
    )
    known = sums.sort("worker").collect()
    of_workers = speeds[known["worker"].to_numpy()]
    by_worker = pl.LazyFrame({"worker": known["worker"], "speed": of_workers})
    return ComputeRows(rows.join(by_worker, on="worker", how="left", maintain_order="left"), of_workers, known)


def fit_compute(rows: ComputeRows) -> ComputeFit | None:
    """Least squares over the rows, each brought to full speed, with no coefficient below 0.

    Returns:
        None where the rows do not tell the coefficients apart, as where all have as many tokens, where times do not
        grow with padded tokens, and of rows of earlier versions.
    """
    from scipy.optimize import nnls

    if not rows.all_of("with_squares"):
        return None
    most = rows.sums.select(f"most_{name}" for name in _TERMS).max()
    scale = np.maximum(most.to_numpy()[0].astype(np.float64), 1.0)
    triangle = _triangle(rows.rows, np.append(scale, 1.0))
    terms, rounding = len(_TERMS), rows.height * np.finfo(np.float64).eps
    if rows.all_of("unpadded") and np.linalg.matrix_rank(triangle[:, :terms], rtol=rounding) < terms:
        terms = 2  # samples of one length, which real tokens alone tell as well
    if np.linalg.matrix_rank(triangle[:, :terms], rtol=rounding) < terms:
        return None
    found, _ = nnls(triangle[:, :terms], triangle[:, -1])
    alpha, beta, gamma = np.append(found / scale[:terms], 0.0)[:3]
    return ComputeFit(float(alpha), float(beta), float(gamma)) if beta + gamma > 0 else None


def _triangle(rows: pl.LazyFrame, scale: FloatArray) -> FloatArray:
    """The triangle of the QR decomposition of the terms and the compute over their scale, however many the rows.

    Least squares of any of the columns on others have the same solution over it as over all rows.
    """
    columns = rows.select(pl.col(_TERMS).cast(pl.Float64), pl.col("compute_ms").cast(pl.Float64) * pl.col("speed"))
    triangle: FloatArray = np.empty((0, len(scale)))
    for block in columns.collect_batches(chunk_size=_BLOCK):
        triangle = np.asarray(np.linalg.qr(np.vstack([triangle, block.to_numpy() / scale]), mode="r"))
    return triangle


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


_FIT_ERROR = 0.05
"""A candidate passes the bound, which is fitted, by at most this part of its time, and has then recovered all. One that
passes it further does what the fitted cost says cannot be."""
LEAST_LOSS = 0.01
"""A loss below this part of the baseline's time is within its noise; no share of it is stated."""
_NO_SHARE = 0.005
"""A recovered share below this rounds to 0 %; of a candidate slower than the baseline it is negative."""


def share_ideal(arms: Sequence[Arm], summaries: Mapping[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """The summaries, those of arms that are compared with their waste by an ideal that they share.

    Those that did the baseline's work, at level `step` or `window` on as many ranks of the same speeds, share the least
    of their own ideals per real token, means over whole launches. The others have none, so that `s` and `compute` of
    their waste are None; nor has any where none did the baseline's work. A single arm keeps its own.

    Args:
        arms: the baseline comes first.
        summaries: by id of the run, with its own ideal.
    """
    baseline, *others = arms
    if not others:
        return dict(summaries)
    sharing = [baseline, *(arm for arm in others if _of_same_work(baseline, arm))]
    ideals = [_own_ideal(arm, summaries) for arm in sharing if len(sharing) > 1]
    least = min((ideal for ideal in ideals if ideal is not None), default=math.nan)
    found = dict(summaries)
    for arm in arms:
        for run in arm.runs:
            own, ideal_ms = summaries[run.run.id], least * _tokens(run) if arm in sharing else math.nan
            found[run.run.id] = own | {"waste": _of_shared(cast(Waste, own["waste"]), run.time_ms, ideal_ms)}
    return found


def _of_same_work(baseline: Arm, arm: Arm) -> bool:
    one, other = baseline.runs[0], arm.runs[0]
    alike = one.workers == other.workers
    alike = alike and one.facts.config.launch.slowdown == other.facts.config.launch.slowdown
    pairs = pair_launches(baseline, arm).pairs if alike else ()
    return bool(pairs) and comparison_level(pairs) in ("step", "window")


def _own_ideal(arm: Arm, summaries: Mapping[str, Mapping[str, object]]) -> float | None:
    """Ms per real token, mean over whole launches; None where one of them can state none."""
    found = []
    for run in arm.whole:
        s = lookup(summaries[run.run.id], "waste.s")
        if s is None:
            return None
        found.append(run.time_ms / s / _tokens(run))
    return fmean(found)


def _tokens(run: MergedRun) -> float:
    return float(run.measured["real_tokens"].sum())


class Recovery(NamedTuple):
    """A candidate between the baseline and the bound.

    Attributes:
        bound_speedup: baseline's time over that of the bound.
        within_steps: the bound is on plans that keep the samples of every step; else on plans that move them between
            steps, which it is never above.
        share: (baseline - candidate) / (baseline - bound), each in seconds per real token, at most 1; None where the
            baseline loses next to nothing.
        overhead_share: part of the baseline's slowest rank's compute that does not grow with its tokens (alpha, once
            per micro-batch); 1 where a step is all launch overhead.
    """

    bound_speedup: float
    within_steps: bool
    share: float | None
    overhead_share: float

    def record(self) -> dict[str, Any]:
        """What records of comparisons have of it."""
        bound = {"bound_speedup": self.bound_speedup, "bound_within_steps": self.within_steps}
        return bound | {"recovered_share": self.share, "overhead_share": self.overhead_share}

    def sentence(self, baseline: str) -> Phrase:
        """For people, without a full stop."""
        case = "no_loss" if self.share is None else "nothing" if self.share < _NO_SHARE else "share"
        values = {"bound": self.bound_speedup, "share": self.share, "within_steps": self.within_steps}
        return Phrase.of("recovery", case=case, baseline=baseline, **values)


def recovery(pairs: Sequence[Pair], level: Level = "step") -> Recovery | None:
    """What the candidates of the pairs recover together.

    The bound leaves everything of a step as the baseline measured it but the slowest rank's compute, which becomes the
    least that a plan of the step's samples could reach with one micro-batch per rank and no padding, as
    `schedule.bounds` has it: max((G*alpha + sum(beta*L + gamma*L²)) / sum(speed), (alpha + beta*Lmax + gamma*Lmax²) /
    fastest). The coefficients are fitted to the baseline's own rows, its ranks brought to full speed.

    A plan that moves samples between steps, as a window does, may pass that: it can put long samples side by side, so
    that fewer steps wait for one. What no plan of the same samples in as many steps passes is the mean over ranks, the
    first term, summed over the steps.

    Args:
        pairs: launches of the baseline and of the candidate.
        level: how far they did the same work; below `step` the candidate moved samples between steps, and at `tokens`
            its steps are of other batches than those that the bound is of.

    Returns:
        None where nothing is known: the level is `tokens`, the rows tell no cost (`fit_compute`), the arms' ranks were
        slowed differently, or the candidate is faster than the bound beyond `_FIT_ERROR`, so that the fitted cost is
        not what its steps cost.
    """
    if level == "tokens":
        return None
    within_steps = level == "step"
    baseline = candidate = bound = overhead = 0.0
    for base, other in pairs:
        found = _bound(base, other, within_steps)
        if found is None:
            return None
        bound_ms, overhead_share = found
        tokens = float(base.measured["real_tokens"].sum())
        baseline += base.time_ms / tokens
        candidate += other.time_ms / float(other.measured["real_tokens"].sum())
        bound += bound_ms / tokens
        overhead += overhead_share / len(pairs)
    if bound > (1 + _FIT_ERROR) * candidate:
        return None
    lost = baseline - bound
    share = min((baseline - candidate) / lost, 1.0) if lost > LEAST_LOSS * baseline else None
    return Recovery(baseline / bound, within_steps, share, overhead)


def _bound(base: MergedRun, other: MergedRun, within_steps: bool) -> tuple[float, float] | None:
    """Time of the baseline's measured steps, ms, were their compute as short as it can be; and its overhead's share."""
    if base.facts.config.launch.slowdown != other.facts.config.launch.slowdown:
        return None
    speeds = relative_speeds(base, other)
    rows = compute_rows(base, speeds)
    fit = fit_compute(rows)
    if fit is None:
        return None
    steps = base.measured
    tokens, tokens2, longest = (
        steps[name].to_numpy().astype(np.float64) for name in ("real_tokens", "real_tokens2", "longest")
    )
    least = (len(speeds) * fit.alpha + fit.of_tokens(tokens, tokens2)) / speeds.sum()
    slowest = steps["compute_ms_max"].to_numpy().astype(np.float64)
    if within_steps:
        least = np.maximum(least, (fit.alpha + fit.of_tokens(longest, longest**2)) / speeds.max())
        bound_ms = base.time_ms - float(np.maximum(slowest - least, 0.0).sum())
    else:
        bound_ms = base.time_ms - max(float((slowest - least).sum()), 0.0)
    overhead_ms = fit.alpha * rows.sums["micro_batches"].to_numpy().sum() / rows.height
    return bound_ms, float(min(1.0, overhead_ms / slowest.mean()))
