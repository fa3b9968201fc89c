"""What the time of profiled steps went to, by phase and operation: of all ranks, held against what the wire says."""

from __future__ import annotations

import logging
from statistics import fmean
from typing import Annotated, TypedDict

import polars as pl

from dynbench.analysis.measure import ratio, total
from dynbench.analysis.merge import MergedRun
from dynbench.errors import RecordError
from dynbench.runs.json_record import read_json
from dynbench.runs.records import (
    COMMUNICATION,
    PROFILE_SCHEMA_VERSION,
    ProfileRow,
    RankProfile,
)
from dynbench.units import Unit

log = logging.getLogger(__name__)


class ProfileShare(TypedDict):
    """What an operation took of a phase, per step."""

    phase: str
    """forward, backward (up to the gradients' meeting), optimizer, or other."""
    operation: str
    """Of the wire; `communication` for all of them, `past the wire` for what it did not begin, or `compute`."""
    calls: float
    """How often it was under way."""
    ms: Annotated[float, Unit("ms")]
    """Time in which it was, overlapping ones once."""
    share: Annotated[float, Unit("fraction")]
    """Of the step."""


class Profile(TypedDict):
    """What the time of profiled steps went to, means over the ranks that train."""

    first_step: int
    """The first step profiled."""
    steps: Annotated[int, Unit("steps")]
    """How many were."""
    ranks: Annotated[int, Unit("ranks")]
    """Whose profile could be read."""
    step_ms: float
    """How long a step was, profiled."""
    phase_ms: dict[str, float] | None
    """How long forward, backward with all that the gradients wait for, and optimizer were in these steps by the ranks'
    rows, what was waited for included; null where rows do not tell what passes waited for."""
    comm_share: float
    """Share of the steps in which the back end had something of the wire under way, as the profiler saw it."""
    wire_comm_share: float | None
    """The same of the same steps, as the wire timed it."""
    rows: list[ProfileShare]
    """By phase and operation."""


def profile_of(merged: MergedRun) -> Profile | None:
    """The `profile` object of a summary; None where no step was profiled."""
    files = (merged.run.profile_file(rank) for rank in range(merged.facts.servers, merged.world_size))
    found = [profile for file in files if file.is_file() and (profile := _read(merged, file.name)) is not None]
    if not found:
        return None
    first, step_ms = found[0], fmean(profile.step_ms for profile in found)
    by_place: dict[tuple[str, str], list[ProfileRow]] = {}
    for profile in found:
        for row in profile.rows:
            by_place.setdefault((row.phase, row.operation), []).append(row)
    rows: list[ProfileShare] = []
    for (phase, operation), same in by_place.items():
        calls, ms = (sum(getattr(row, name) for row in same) / len(found) for name in ("calls", "ms"))
        rows.append({"phase": phase, "operation": operation, "calls": calls, "ms": ms, "share": ms / step_ms})
    steps = merged.steps.filter(pl.col("step").is_between(first.first_step, first.first_step + first.steps - 1))
    return {
        "first_step": first.first_step,
        "steps": first.steps,
        "ranks": len(found),
        "step_ms": step_ms,
        "phase_ms": _phases(merged, range(first.first_step, first.first_step + first.steps)),
        "comm_share": sum(row.ms for profile in found for row in profile.rows if row.operation == COMMUNICATION)
        / sum(profile.step_ms for profile in found),
        "wire_comm_share": ratio(total(steps, "comm_ms"), total(steps, "step_time_ms_mean")),
        "rows": rows,
    }


def _phases(merged: MergedRun, steps: range) -> dict[str, float] | None:
    """How long each phase was by the rows of these steps, what other ranks were waited for in it included."""
    rows = merged.worker_rows().filter(pl.col("step").is_in(list(steps)))
    if not {"sync_forward_ms", "sync_optimizer_ms"} <= set(rows.collect_schema().names()):
        return None
    within = pl.col("sync_forward_ms") + pl.col("sync_optimizer_ms")
    found = rows.select(
        forward=(pl.col("forward_ms") + pl.col("sync_forward_ms")).mean(),
        backward=(pl.col("backward_ms") + pl.col("sync_ms") - within).mean(),
        optimizer=(pl.col("optimizer_ms") + pl.col("sync_optimizer_ms")).mean(),
    )
    return {phase: float(ms) for phase, ms in found.collect().row(0, named=True).items() if ms is not None}


def _read(merged: MergedRun, name: str) -> RankProfile | None:
    try:
        remedy = "Train it again."
        return read_json(merged.run.profiler_dir / name, RankProfile, remedy, PROFILE_SCHEMA_VERSION)
    except RecordError as error:
        log.warning("%s; the profile goes without it", error.message)
        return None
