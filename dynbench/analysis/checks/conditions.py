"""The conditions under which steps were measured: memory, warm-up, drift, cores, and what their time was spent on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from dynbench.analysis.checks.finding import Evidence, Seen, mean_share
from dynbench.analysis.crowding import load_of
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.pace import step_paces, step_tokens
from dynbench.analysis.stats import growth_p_value, relative_drift, robust_z
from dynbench.errors import RecordError
from dynbench.runs.probe_record import read_probe

MEMORY_TOLERANCE = 1.01
"""Pages of libraries that a rank touches and a trial does not."""
WARMUP_LIMIT = 3.5
"""Standard deviations above which a first value stands out: at a spread of 15 % one of twice the time does."""
WARMUP_PACE = 1.25
"""Times of the other steps' pace below which a first one matters to no mean, however quiet the machine."""
DRIFT_LIMIT = 0.10
"""Change over one launch, as a part of its median step."""
SLOWER_CHANCE, FASTER_CHANCE = 0.0125, 0.0075
"""How often equal steps would get slower, or faster, by chance: 2 % in all, less of it for steps that get faster, as a
warm-up does, for which `short_warmup` looks too."""
PLANNING_LIMIT = 0.01
CHEAPER_PLANS = ("prefix", "window")
"""Policies with a setting that makes planning cheaper."""


def memory_limit(evidence: Evidence) -> Iterator[Seen]:
    """Runs whose peak is above the memory that their capacities were probed under: they promise more than they keep."""
    for run in evidence.runs:
        limit = _limit_mb(run)
        peaks = (
            run.steps.select("step", pl.col("peak_mem_mb_max").alias("peak")).drop_nulls().sort("peak", descending=True)
        )
        if limit is not None and peaks.height and peaks["peak"][0] > MEMORY_TOLERANCE * limit:
            peak = {"peak_mb": float(peaks["peak"][0]), "step": int(peaks["step"][0])}
            yield Seen("warn", {"run": run.label, **peak, "limit_mb": limit})


def _limit_mb(run: MergedRun) -> float | None:
    """Memory of a process in the trials, MB; None on GPUs, without probed capacities, or where the probe is gone."""
    named = run.facts.config.schedule.capacity
    try:
        return read_probe(run.run.path.parent / named).memory_limit_mb if isinstance(named, str) else None
    except RecordError:
        return None


def short_warmup(evidence: Evidence) -> Iterator[Seen]:
    """Runs whose first measured step stands so far out of what its tokens cost that it still belongs to the warm-up."""
    for run in evidence.measured_runs:
        if run.measured.height < 10:
            continue
        first, *others = step_paces(run)
        z = robust_z(first, others)
        if z > WARMUP_LIMIT and first > WARMUP_PACE * float(np.median(others)):
            longer = 2 * max(5, run.facts.config.train.warmup_steps)
            taken = {"first_ms": float(run.measured["step_time_max_ms"][0]), "pace": float(first), "deviations": z}
            yield Seen("warn", {"run": run.label, **taken, "limit": WARMUP_LIMIT, "warmup_steps": longer})


def drift(evidence: Evidence) -> Iterator[Seen]:
    """Runs whose steps, for what their tokens cost, change by more than `DRIFT_LIMIT`, and not by chance."""
    for run in evidence.measured_runs:
        if run.measured.height < 20:
            continue
        paces = step_paces(run)
        change = relative_drift(paces)
        towards, chance = (paces, SLOWER_CHANCE) if change > 0 else (-paces, FASTER_CHANCE)
        p = growth_p_value(towards, step_tokens(run))
        if abs(change) > DRIFT_LIMIT and p < chance:
            values = {"run": run.label, "drift": change, "limit": DRIFT_LIMIT, "chance": chance, "p": p}
            yield Seen("warn", values, "slower" if change > 0 else "faster")


def oversubscribed_cores(evidence: Evidence) -> Iterator[Seen]:
    """The first run with more threads on CPU than cores: ranks then wait for the system's scheduler, not each other.

    `--nproc` is no way out where arms of fewer and more ranks are compared: it would make them all alike.
    """
    loads = [(run, load) for run in evidence.runs if (load := load_of(run.facts)) is not None]
    compared = len({load.ranks for _, load in loads}) > 1
    for run, load in loads:
        if load.oversubscribed:
            ranks, threads, cores = load.ranks, load.threads, load.cores
            fewer_ranks = ranks > cores or threads == 1
            setting, number = ("nproc", max(1, cores // threads)) if fewer_ranks else ("threads", cores // ranks)
            values = {"run": run.label, "ranks": ranks, "threads": threads, "cores": cores, "number": number}
            yield Seen("warn", values, "arms" if fewer_ranks and compared else setting)
            return


def planning_cost(evidence: Evidence) -> Iterator[Seen]:
    """Arms that plan for more than `PLANNING_LIMIT` of their step time, which contains it, mean over launches.

    Not `static`: no other policy plans in less.
    """
    for arm in evidence.arms:
        share, policy = mean_share(arm, "plan_ms_mean"), arm.runs[0].facts.policy
        if policy != "static" and share > PLANNING_LIMIT:
            values = {"arm": arm.label, "share": share, "limit": PLANNING_LIMIT}
            splits = arm.runs[0].facts.config.schedule.micro_batches != 1
            yield Seen("warn", values, policy if policy in CHEAPER_PLANS else "micro_batches" if splits else "other")


def null_wire(evidence: Evidence) -> Iterator[Seen]:
    """The first run whose ranks sent nothing to each other."""
    run = next((run for run in evidence.runs if not run.facts.trains), None)
    if run is not None:
        yield Seen("warn", {"run": run.label, "setting": run.facts.config.sync.silent})


def virtual_ranks(evidence: Evidence) -> Iterator[Seen]:
    """The first run whose ranks were played one after another on one device."""
    run = next((run for run in evidence.runs if run.facts.virtual), None)
    if run is not None:
        model = run.facts.comm_model
        yield Seen("info", {"run": run.label, "world_size": run.world_size, "comm_model": model})
