"""What the time of profiled steps went to, by phase and operation: of all ranks, held against what the wire says."""

from __future__ import annotations

import logging
from statistics import fmean

import polars as pl

from dynbench.analysis.merge import MergedRun
from dynbench.errors import RecordError
from dynbench.runs.json_record import read_json
from dynbench.runs.profile_record import COMMUNICATION, PROFILE_SCHEMA_VERSION, ProfileRow, RankProfile

log = logging.getLogger(__name__)


def profile_of(merged: MergedRun) -> dict[str, object] | None:
    """The `profile` object of a summary, means over the ranks that train; None where no step was profiled."""
    files = (merged.run.profile_file(rank) for rank in range(merged.facts.servers, merged.world_size))
    found = [profile for file in files if file.is_file() and (profile := _read(merged, file.name)) is not None]
    if not found:
        return None
    first, step_ms = found[0], fmean(profile.step_ms for profile in found)
    by_place: dict[tuple[str, str], list[ProfileRow]] = {}
    for profile in found:
        for row in profile.rows:
            by_place.setdefault((row.phase, row.operation), []).append(row)
    rows: list[dict[str, object]] = []
    for (phase, operation), same in by_place.items():
        calls, ms = (sum(getattr(row, name) for row in same) / len(found) for name in ("calls", "ms"))
        rows.append({"phase": phase, "operation": operation, "calls": calls, "ms": ms, "share": ms / step_ms})
    steps = merged.steps.filter(pl.col("step").is_between(first.first_step, first.first_step + first.steps - 1))
    of_wire = "comm_ms" in steps.columns and steps.height > 0
    return {
        "first_step": first.first_step,
        "steps": first.steps,
        "ranks": len(found),
        "step_ms": step_ms,
        "phase_ms": _phases(merged, range(first.first_step, first.first_step + first.steps)),
        "comm_share": sum(row.ms for profile in found for row in profile.rows if row.operation == COMMUNICATION)
        / sum(profile.step_ms for profile in found),
        "wire_comm_share": float(steps["comm_ms"].sum()) / float(steps["step_time_ms_mean"].sum()) if of_wire else None,
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
