"""The pace of steps and ranks, and how well the planner's cost and a probe's prediction stood for what was measured.

Step times spread mostly because steps differ in work. Without it, what comes with time shows.

A rank is slowest in a step when it is busy longest before synchronising: plan, data and compute. Ranks that tie share
the step. Being slowest does not make a machine slow, as a deal may give one rank more work in every step; its pace
does, the time of its compute over what a cost fitted to the other ranks' rows predicts.

A planner's cost without a unit of time is held against the compute (forward and backward), brought to ms by one factor,
total compute over total cost. `measured` is in ms and is held, as it is, against what a probe's steps consist of: data,
forward, backward and optimizer. Rows are those of measured steps, one per rank and step; of more than `MOST_ROWS`,
evenly spaced ones.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.stats import CONSISTENCY, theil_sen
from dynbench.analysis.waste import FloatArray, relative_speeds
from dynbench.errors import RecordError
from dynbench.runs.probe_record import ProbeRecord, read_probe
from dynbench.schedule.cost import CostModel
from dynbench.units import Unit

_MOST_STEPS = 500
"""The line is fitted to so many steps, of more to evenly spaced ones."""
PACE_LIMIT = 1.10
"""Times of the other ranks' pace from which a rank counts as slow; cores of one machine differ by a few percent."""
_STANDARD_ERRORS = 4
"""By so many a pace is above 1 in earnest."""
_SIGNIFICANCE = 0.05
"""Probability, over all ranks, at which one of equal ranks would be slowest as often as a rank that is named."""
_FEWEST_STEPS = 20
"""Measured steps of a launch below which it is not judged."""
_MAX_PACE_STEPS = 2_000
"""Most measured steps of a launch that paces are fitted to, evenly spaced."""
_INNER = (0.05, 0.95)
"""Quantiles of the other ranks' shares of work within which a rank's own is held against them."""
_WORK = ("micro_batches", "local_batch", "padded_tokens", "max_seq_len_in_batch")


def step_tokens(run: MergedRun) -> FloatArray:
    """Padded tokens of the rank that has most, of every measured step; shape [steps]."""
    return run.measured["padded_tokens_max"].to_numpy().astype(np.float64)


def step_paces(run: MergedRun) -> FloatArray:
    """Time of every measured step over a line fitted to the steps' tokens, 1 for the usual one; shape [steps].

    Outliers hardly move the line. No step is expected to take less than the quickest one did.
    """
    times = run.measured["step_time_max_ms"].to_numpy().astype(np.float64)
    tokens = step_tokens(run)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(len(times), _MOST_STEPS)).astype(np.int64))
    slope = theil_sen(tokens[chosen], times[chosen])
    overhead = float(np.median(times - slope * tokens))
    paces: FloatArray = times / np.maximum(overhead + slope * tokens, times.min())
    return paces


class SlowestRanks(TypedDict):
    """Who the steps wait for."""

    distinct: Annotated[int, Unit("ranks")]
    """Workers that were the slowest of a step, busy longest before synchronising."""
    shares: list[float | None]
    """Of the steps, by worker; a tie counts for each of its ranks in part."""
    equal: Annotated[float, Unit("fraction")]
    """The share that equal ranks would have."""


def slowest_ranks(merged: MergedRun) -> SlowestRanks | None:
    """The `slowest_ranks` object of a summary; None with a single worker or without a measured step."""
    workers, shares = _slowest(merged)
    if len(workers) < 2:
        return None
    by_worker = dict(zip(workers, shares.mean(axis=0).tolist(), strict=True))
    return {
        "distinct": sum(share > 0 for share in by_worker.values()),
        "shares": [by_worker.get(worker) for worker in range(merged.workers)],
        "equal": 1 / len(workers),
    }


def slow_ranks(runs: Sequence[MergedRun]) -> Iterator[dict[str, float]]:
    """The ranks that are slowest more often than equal ranks would be, and slower at equal work, over all launches.

    Steps that follow each other are alike, so both are judged as if there were only as many steps as their correlation
    leaves (`_effective`). A rank whose work is like none of the others', so that its pace cannot be told, is not named.

    Args:
        runs: launches of one arm; those with fewer than `_FEWEST_STEPS`, or without rows of a rank, are left out.

    Yields:
        `rank`; `share` of the measured steps in which it is the slowest, and the share that `equal` ranks would have;
        `pace`, its time for equal work over that of the other ranks, median over steps.
    """
    launches = [run for run in runs if run.measured.height >= _FEWEST_STEPS and not run.missing_ranks]
    ranks = runs[0].workers
    if not launches or ranks < 2:
        return
    shares = [_slowest(run)[1] for run in launches]
    often = [rank for rank in range(ranks) if _more_often([each[:, rank] for each in shares], ranks)]
    work = [_work(run) for run in launches if often]
    for rank in often:
        pace = _pace([_apart(*each, rank) for each in work])
        if pace is not None and pace >= PACE_LIMIT:
            share = float(np.concatenate([each[:, rank] for each in shares]).mean())
            yield {"rank": rank + runs[0].facts.servers, "share": share, "equal": 1 / ranks, "pace": pace}


def _slowest(merged: MergedRun) -> tuple[list[int], FloatArray]:
    """The workers that have rows, and each one's part in being the slowest of a measured step, shape [steps, workers].

    The merged rows stand worker by worker, each in order of step, and a complete step has a row of every worker.
    """
    busy = (pl.col(name).cast(pl.Float64) for name in ("plan_ms", "data_ms", "compute_ms"))
    rows = merged.measured_rows().select("worker", busy=reduce(operator.add, busy)).collect()
    workers = rows["worker"].unique().sort().to_list()
    if not workers:
        return [], np.empty((0, 0))
    of_worker = rows["busy"].to_numpy().reshape(len(workers), -1)
    last = of_worker == of_worker.max(axis=0)
    return workers, (last / last.sum(axis=0)).T


def _work(merged: MergedRun) -> tuple[FloatArray, FloatArray]:
    """Of at most `_MAX_PACE_STEPS` measured steps the compute, [steps, workers], and `_WORK`, [4, steps, workers]."""
    steps = merged.measured["step"]
    chosen = steps.gather(np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MAX_PACE_STEPS)).astype(np.int64)))
    rows = merged.worker_rows().filter(pl.col("step").is_in(chosen.implode()))
    found = rows.select(pl.col("compute_ms", *_WORK).cast(pl.Float64)).collect().to_numpy()
    compute, *work = found.T.reshape(1 + len(_WORK), merged.workers, -1).swapaxes(1, 2)
    return compute, np.stack(work)


def _more_often(slowest: Sequence[FloatArray], ranks: int) -> bool:
    """Whether a rank is slowest in more steps than one of equal ranks would be, by the upper tail of the binomial.

    Args:
        slowest: per launch its part in each step.
        ranks: their number.
    """
    from scipy.special import betainc

    steps = [_effective(each) for each in slowest]
    times = sum(float(each.mean()) * worth for each, worth in zip(slowest, steps, strict=True))
    return times > 0 and float(betainc(times, sum(steps) - times + 1, 1 / ranks)) < _SIGNIFICANCE / ranks


def _effective(series: FloatArray) -> float:
    """Independent steps that a series is worth, by its correlation with itself one step on; shape [steps]."""
    if not series.size:
        return 0.0
    deviations = series - series.mean()
    variance = float((deviations * deviations).sum())
    correlation = float((deviations[1:] * deviations[:-1]).sum()) / variance if variance > 0 else 0.0
    correlation = min(max(correlation, 0.0), 0.99)
    return len(series) * (1 - correlation) / (1 + correlation)


def _pace(apart: Sequence[FloatArray]) -> float | None:
    """The median over all launches' steps; None where they are few, or it may be 1 by chance.

    Args:
        apart: per launch, of `_apart`.
    """
    logs = np.concatenate(apart)
    if logs.size < _FEWEST_STEPS // 2:
        return None
    centre = float(np.median(logs))
    spread = CONSISTENCY * float(np.median(np.abs(logs - centre)))
    # The median of normal data has a standard error of 1.2533 standard deviations over the root of n.
    error = 1.2533 * spread / math.sqrt(sum(map(_effective, apart)))
    return math.exp(centre) if centre > _STANDARD_ERRORS * error else None


def _apart(compute: FloatArray, work: FloatArray, rank: int) -> FloatArray:
    """Logarithm of the times that a rank takes for what the others do in one, in the steps that tell it, [some steps].

    The cost is linear in micro-batches, samples, padded tokens and their product with the length, fitted to the other
    ranks. Only steps count in which the rank's work lies within what is usual for theirs: beyond, a cost that bends
    otherwise would look like a slow rank. What all ranks share in a step cancels.
    """
    others = np.arange(compute.shape[1]) != rank
    low, high = np.quantile(work[:, :, others].reshape(len(_WORK), -1), _INNER, axis=1)
    own = work[:, :, rank]
    alike = np.all((own >= low[:, None]) & (own <= high[:, None]), axis=0) & np.all(compute > 0, axis=1)
    design = np.stack([*work, work[2] * work[3]], axis=-1)
    design = design / np.maximum(design.max(axis=(0, 1)), 1.0)
    fit, *_ = np.linalg.lstsq(design[:, others].reshape(-1, design.shape[-1]), compute[:, others].ravel(), rcond=None)
    predicted = design @ fit
    alike &= np.all(predicted > 0, axis=1)
    logs = np.log(compute[alike] / predicted[alike])
    found: FloatArray = logs[:, rank] - np.median(logs[:, others], axis=1)
    return found


log = logging.getLogger(__name__)

MOST_ROWS = 1_000_000
_PRICED = ("worker", "compute_ms", "optimizer_ms", "data_ms", "padded_tokens", "micro_batches")
_ONE_BATCH = pl.col("padded_tokens").cast(pl.Float64) ** 2 / pl.max_horizontal("local_batch", 1)
"""`padded_tokens2` of a padded micro-batch, in rows of earlier versions, which did not record it."""
STATIC = "static"
WINDOW = "window"


class ProxyError(TypedDict):
    """How far a prediction is from the time."""

    correlation: Annotated[float | None, Unit("1")]
    """Pearson's with the time; null without spread or coefficients."""
    mape: float | None
    """Mean of |predicted - time| / time."""


class Proxy(TypedDict):
    """How well a cost stood for measured time."""

    cost_type: str
    """The planner's."""
    padded_tokens: ProxyError
    """Of padded tokens."""
    cost: ProxyError
    """Of the planner's cost with its coefficients."""


def proxy_error(merged: MergedRun) -> Proxy:
    """The `proxy` object of a summary.

    Returns:
        `cost_type`, the planner's; and for `padded_tokens` and `cost` (with the planner's coefficients), over all rows:
        `correlation` (Pearson, with the time) and `mape` (mean of |predicted - time| / time), where the time is the
        compute, and for `measured` compute, optimizer and data together. None where it cannot be told: no spread,
        unknown coefficients, several micro-batches per rank under `tokens_sq`, and packed rows or several micro-batches
        in runs of earlier versions under a cost of squared lengths.
    """
    rows = (
        merged.worker_rows()
        .filter((pl.col("warmup") == 0) & (pl.col("compute_ms") > 0))
        .gather_every(merged.rows // MOST_ROWS + 1)
        .select(
            *(pl.col(name).cast(pl.Float64) for name in _PRICED),
            pl.coalesce(
                pl.col("padded_tokens2").cast(pl.Float64),
                pl.when(pl.col("layout") == "padded", pl.col("micro_batches") <= 1).then(_ONE_BATCH),
            ),
        )
        .collect()
    )
    columns = {name: rows[name].to_numpy() for name in rows.columns}
    speeds = relative_speeds(merged)[columns["worker"].astype(np.int64)]
    tokens, compute_ms = columns["padded_tokens"], columns["compute_ms"]
    cost = cost_model(merged)
    predicted = None if cost is None else _predicted(cost, columns)
    in_ms = cost is not None and cost.cost_type == "measured"
    time_ms = compute_ms + columns["optimizer_ms"] + columns["data_ms"] if in_ms else compute_ms
    return {
        "cost_type": merged.facts.config.schedule.cost_type,
        "padded_tokens": _error(tokens / speeds, compute_ms, scaled=True),
        "cost": _error(None if predicted is None else predicted / speeds, time_ms, scaled=not in_ms),
    }


def cost_model(merged: MergedRun) -> CostModel | None:
    """The cost that a run was planned with; None where its coefficients are not known, or it was never resolved."""
    schedule = merged.facts.config.schedule
    match schedule.cost_type:
        case "tokens" | "tokens_sq" as counted:
            return CostModel(counted)
        case "attention":
            return CostModel("attention", attention_a=schedule.attention_a)
        case "measured":
            return _measured(merged)
    return None


def _measured(merged: MergedRun) -> CostModel | None:
    schedule, probe = merged.facts.config.schedule, merged.facts.config.probe
    coefficients, further = schedule.cost_coefficients, schedule.further_ms
    if coefficients is None:
        if probe.run is None:
            return None
        try:
            fit = read_probe(merged.run.path.parent / probe.run).cost_model
        except RecordError:
            return None
        if fit is None:
            return None
        coefficients = fit.alpha_ms, fit.beta_ms_per_token, fit.gamma_ms_per_token2
        further = fit.further_ms if further is None else further
    alpha, beta, gamma = coefficients
    return CostModel("measured", alpha=alpha, beta=beta, gamma=gamma, further=further)


def _predicted(cost: CostModel, columns: dict[str, FloatArray]) -> FloatArray | None:
    """Cost of each row's share, as `schedule.evaluate` prices its plan; None where the rows do not tell it."""
    tokens, tokens2, parts = (columns[name] for name in ("padded_tokens", "padded_tokens2", "micro_batches"))
    if cost.cost_type == "tokens":
        return tokens
    known = parts <= 1 if cost.cost_type == "tokens_sq" else np.isfinite(tokens2)
    if not known.all():
        return None
    return cost.of_rank(cost.cost_packed(tokens, tokens2) + (parts - 1) * cost.alpha, parts)


def _error(predicted: FloatArray | None, time_ms: FloatArray, *, scaled: bool) -> ProxyError:
    if predicted is None or len(predicted) < 2 or not predicted.sum() > 0:
        return {"correlation": None, "mape": None}
    factor = time_ms.sum() / predicted.sum() if scaled else 1.0
    mape = float(np.mean(np.abs(factor * predicted - time_ms) / time_ms))
    spread = predicted.std() > 0 and time_ms.std() > 0
    return {"correlation": float(np.corrcoef(predicted, time_ms)[0, 1]) if spread else None, "mape": mape}


def predicted_speedup(baseline: MergedRun, candidate: MergedRun) -> float | None:
    """Speed-up of the candidate's policy over the baseline's as its probe predicted it.

    None where no probe was used, where it is gone, or where it predicted something else: other workers, another global
    batch, another window, or one micro-batch per rank where the runs may take several.
    """
    probe = _probe_of(candidate) or _probe_of(baseline)
    alike = candidate.workers, candidate.facts.config.train.global_batch
    if probe is None or (probe.world_size, probe.global_batch) != alike:
        return None
    if not (_as_predicted(baseline, probe) and _as_predicted(candidate, probe)):
        return None
    before = _over_static(probe.predicted_speedup, baseline.facts.plan_name)
    after = _over_static(probe.predicted_speedup, candidate.facts.plan_name)
    return after / before if before and after else None


def _probe_of(merged: MergedRun) -> ProbeRecord | None:
    reference = merged.facts.config.probe.run
    folder = merged.run.path.parent / str(reference)
    if reference in (None, "auto", "off") or not folder.is_dir():
        return None
    try:
        return read_probe(folder)
    except RecordError as error:
        log.warning("%s; predicted gains are left out", error.message)
        return None


def _as_predicted(merged: MergedRun, probe: ProbeRecord) -> bool:
    """Whether a run planned as the prediction did: one micro-batch per rank, and windows of as many batches."""
    facts = merged.facts
    as_many = facts.policy != WINDOW or facts.window == probe.predicted_window
    return as_many and facts.config.schedule.micro_batches == 1


def _over_static(predicted: Mapping[str, float | None], policy: str) -> float | None:
    return 1.0 if policy == STATIC else predicted.get(policy)
