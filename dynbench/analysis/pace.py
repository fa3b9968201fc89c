"""The pace of steps and ranks: drift, what the arm before leaves behind, ranks that are slow at equal work.

Step times spread mostly because steps differ in work. Without it, what comes with time, or with the arm before, shows.

What an arm leaves behind (caches, the allocator, clocks, work that it did not end) would be charged to the next one.
Within their rounds orders are balanced, so it reaches all arms about alike; a large effect still says that arms are not
timed by themselves.

A rank is slowest in a step when it is busy longest before synchronising: plan, data and compute. Ranks that tie share
the step. Being slowest does not make a machine slow, as a deal may give one rank more work in every step; its pace
does, the time of its compute over what a cost fitted to the other ranks' rows predicts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from dynbench.analysis.arms import Arm
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.stats import CONSISTENCY, theil_sen
from dynbench.analysis.waste import FloatArray
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
_COLUMNS = ("plan_ms", "data_ms", "compute_ms", *_WORK)


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


@dataclass(frozen=True, slots=True)
class Effect:
    """How much longer an arm's steps take after one arm than after the others.

    Attributes:
        arm: whose steps.
        before: the arm that ran before.
        share: the mean over launches, as a part of the arm's step time.
        p: of Student's t test over launches that it is none, times the number of effects looked at (Bonferroni).
        launches: with both kinds of steps.
    """

    arm: str
    before: str
    share: float
    p: float
    launches: int


def effects(arms: Sequence[Arm]) -> list[Effect]:
    """The effect of every arm on every arm's next step; a step after the arm's own counts too.

    Steps are held against what their tokens let expect (`pace`). Inference is over launches, so two are the least.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for launch in _launches(arms):
        owners = {int(turn): label for label, run in launch.items() for turn in run.steps["turn"].unique()}
        for label, run in launch.items():
            paces, before = step_paces(run), _before(run, owners)
            for name in launch:
                after, others = paces[before == name], paces[before != name]
                if len(after) and len(others):
                    found[label, name].append(float(after.mean() - others.mean()))
    tested = {pair: values for pair, values in found.items() if len(values) > 1}
    return [
        Effect(arm, before, float(np.mean(values)), min(1.0, _p_value(values) * len(tested)), len(values))
        for (arm, before), values in tested.items()
    ]


def _launches(arms: Sequence[Arm]) -> Iterator[Mapping[str, MergedRun]]:
    """Label to run of every launch that several arms shared."""
    shared: dict[str, dict[str, MergedRun]] = defaultdict(dict)
    for arm in arms:
        for run in arm.whole:
            if run.facts.together is not None and "turn" in run.steps.columns and run.measured.height > 2:
                shared[run.facts.together][arm.label] = run
    return (runs for runs in shared.values() if len(runs) > 1)


def _before(run: MergedRun, owners: Mapping[int, str]) -> np.ndarray:
    """The arm that had the turn before each measured step, the step's own arm within a turn; shape [steps]."""
    steps = run.measured
    turns = steps["turn"].to_numpy()
    first = np.ones(len(turns), dtype=bool)
    first[1:] = turns[1:] != turns[:-1]
    return np.array([owners.get(int(turn) - 1, "") if new else "" for turn, new in zip(turns, first, strict=True)])


def _p_value(values: Sequence[float]) -> float:
    from scipy.stats import ttest_1samp

    spread = float(np.std(values))
    if spread == 0:
        return 1.0 if np.mean(values) == 0 else 0.0
    return float(ttest_1samp(values, 0.0).pvalue)


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank whose slowness is its own.

    Attributes:
        rank: its number.
        share: of the measured steps in which it is the slowest.
        equal: the share that equal ranks would have.
        pace: its time for equal work over that of the other ranks, median over steps.
    """

    rank: int
    share: float
    equal: float
    pace: float


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
    workers, columns = _by_step(merged)
    if len(workers) < 2 or not merged.measured.height:
        return None
    shares = _slowest(columns).mean(axis=0)
    by_worker = dict(zip(workers, shares.tolist(), strict=True))
    return {
        "distinct": int((shares > 0).sum()),
        "shares": [by_worker.get(worker) for worker in range(merged.workers)],
        "equal": 1 / len(workers),
    }


def slow_ranks(runs: Sequence[MergedRun]) -> Iterator[SlowRank]:
    """The ranks that are slowest more often than equal ranks would be, and slower at equal work, over all launches.

    Steps that follow each other are alike, so both are judged as if there were only as many steps as their correlation
    leaves (`_effective`). A rank whose work is like none of the others', so that its pace cannot be told, is not named.

    Args:
        runs: launches of one arm; those with fewer than `_FEWEST_STEPS`, or without rows of a rank, are left out.
    """
    launches = [_by_step(run) for run in runs if run.measured.height >= _FEWEST_STEPS and not run.missing_ranks]
    ranks = runs[0].workers
    if not launches or ranks < 2:
        return
    slowest = [_slowest(columns) for _, columns in launches]
    for rank in range(ranks):
        often = [each[:, rank] for each in slowest]
        if not _more_often(often, ranks):
            continue
        pace = _pace([_apart(columns, rank) for _, columns in launches])
        if pace is not None and pace >= PACE_LIMIT:
            share = float(np.concatenate(often).mean())
            yield SlowRank(rank + runs[0].facts.servers, share, 1 / ranks, pace)


def _by_step(merged: MergedRun) -> tuple[list[int], dict[str, FloatArray]]:
    """The workers that have rows, and columns of the measured steps' rows, each of shape [steps, workers].

    The merged rows stand worker by worker, each in order of step, and a complete step has a row of every worker.
    """
    rows = merged.measured_rows().select("worker", *(pl.col(name).cast(pl.Float64) for name in _COLUMNS)).collect()
    shape = -1, merged.measured.height
    workers = rows["worker"].unique().sort().to_list()
    return workers, {name: rows[name].to_numpy().reshape(shape).T if workers else np.empty((0, 0)) for name in _COLUMNS}


def _slowest(columns: Mapping[str, FloatArray]) -> FloatArray:
    """Part that each rank has in being the slowest of a step, shape [steps, workers]; a row adds up to 1."""
    busy = columns["plan_ms"] + columns["data_ms"] + columns["compute_ms"]
    last = busy == busy.max(axis=1, keepdims=True)
    parts: FloatArray = last / last.sum(axis=1, keepdims=True)
    return parts


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


def _apart(columns: Mapping[str, FloatArray], rank: int) -> FloatArray:
    """Logarithm of the times that a rank takes for what the others do in one, in the steps that tell it, [some steps].

    The cost is linear in micro-batches, samples, padded tokens and their product with the length, fitted to the other
    ranks. Only steps count in which the rank's work lies within what is usual for theirs: beyond, a cost that bends
    otherwise would look like a slow rank. What all ranks share in a step cancels.
    """
    steps = len(columns["compute_ms"])
    chosen = np.unique(np.linspace(0, steps - 1, min(steps, _MAX_PACE_STEPS)).astype(np.int64))
    compute, work = columns["compute_ms"][chosen], np.stack([columns[name][chosen] for name in _WORK])
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
