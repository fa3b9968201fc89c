"""What the time of profiled steps went to, by phase and operation: of all ranks, held against what the wire says."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Annotated, Any, NamedTuple, TypedDict, cast

import polars as pl

from dynbench.analysis.measure import Launches, Summaries, ratio, total
from dynbench.analysis.merge import MergedRun
from dynbench.errors import RecordError
from dynbench.runs.atomic import read_json
from dynbench.runs.records import COMMUNICATION, COMPUTE, PROFILE_SCHEMA_VERSION, RankProfile
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
    ms: float
    """Time in which it was, overlapping ones once."""
    share: float
    """Of the step."""


class Profile(TypedDict):
    """What the time of profiled steps went to, means over the ranks that train."""

    first_step: int
    """The first step profiled."""
    steps: int
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
    means = _by_place(([asdict(row) for row in profile.rows] for profile in found), ("calls", "ms"), len(found))
    rows = [cast(ProfileShare, {**row, "share": row["ms"] / step_ms}) for row in means]
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


PHASES = ("forward", "backward", "optimizer", "other")


def profile_rows(launches: Launches) -> list[dict[str, Any]]:
    """By arm, phase and operation, in this order, means over launches; one without an operation counts as none of it.

    `share` is of the step.
    """
    return [row for name, summaries in launches.items() for row in _of_arm(name, _profiles(summaries))]


def _of_arm(name: str, profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    means = _by_place((profile["rows"] for profile in profiles), ("calls", "ms", "share"), len(profiles))
    return [{"arm": name, **row} for row in sorted(means, key=lambda row: PHASES.index(row["phase"]))]


def _by_place(
    profiles: Iterable[Iterable[Mapping[str, Any]]], keys: Sequence[str], count: int
) -> Iterator[dict[str, Any]]:
    """By phase and operation the means of the keys over so many profiles; one without a row counts as 0."""
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in (row for rows in profiles for row in rows):
        by_place.setdefault((row["phase"], row["operation"]), []).append(row)
    for (phase, operation), same in by_place.items():
        yield {"phase": phase, "operation": operation, **{key: sum(row[key] for row in same) / count for key in keys}}


class Bottleneck(NamedTuple):
    """How much of an arm's profiled step is communication.

    Attributes:
        arm: its name.
        step_ms: of a profiled step.
        share: of the step, by the profiler.
        wire_share: the same as the wire timed it; None where it did not.
        of_phase: of each phase that has some; of records without the times of phases, none.
        compute_share: of the step, in which something was computed, beside communication too.
    """

    arm: str
    step_ms: float
    share: float
    wire_share: float | None
    of_phase: Mapping[str, float]
    compute_share: float

    @property
    def is_communication(self) -> bool:
        """Whether communication is under way in more of the step than computing is."""
        return self.share > self.compute_share


def bottlenecks(launches: Launches) -> list[Bottleneck]:
    """Of every arm with a profile."""
    return [_bottleneck(name, profiles) for name, summaries in launches.items() if (profiles := _profiles(summaries))]


def _profiles(summaries: Summaries) -> list[Profile]:
    return [cast(Profile, found) for summary in summaries if (found := summary.get("profile"))]


def _bottleneck(name: str, profiles: Sequence[Profile]) -> Bottleneck:
    rows = _of_arm(name, profiles)
    timed = [found for one in profiles if (found := one.get("phase_ms"))]
    whole = {phase: fmean(each[phase] for each in timed) for phase in (timed[0] if timed else ())}
    sent = {row["phase"]: row["ms"] for row in rows if row["operation"] == COMMUNICATION}
    wire = [value for one in profiles if (value := one.get("wire_comm_share")) is not None]
    return Bottleneck(
        arm=name,
        step_ms=fmean(profile["step_ms"] for profile in profiles),
        share=fmean(profile["comm_share"] for profile in profiles),
        wire_share=fmean(wire) if wire else None,
        of_phase={phase: sent[phase] / whole[phase] for phase in PHASES if sent.get(phase) and whole.get(phase)},
        compute_share=sum(row["share"] for row in rows if row["operation"] == COMPUTE),
    )
