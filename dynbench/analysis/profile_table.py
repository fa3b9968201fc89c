"""What profiled steps went to, arm by arm, as tables for people and rows for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.tables import format_value
from dynbench.runs.profile_record import BY_ITSELF, COMMUNICATION, COMPUTE
from dynbench.table_text import MARKDOWN_WIDTH, Table

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""

PHASES = ("forward", "backward", "optimizer", "other")
TITLE = "profiled steps, by phase and operation"
OF_PHASES = "how much of profiled steps is communication"
COLUMNS = {"calls": "", "ms": "ms", "share": "%"}


@dataclass(frozen=True, slots=True)
class Spent:
    """What an arm's profiled step spent on an operation in a phase, mean over launches."""

    arm: str
    phase: str
    operation: str
    calls: float
    ms: float
    share: float
    """Of the step."""


def spent(launches: Launches) -> list[Spent]:
    """By arm, phase and operation, in this order; a launch without an operation counts as none of it."""
    return [row for name, summaries in launches.items() for row in _of_arm(name, summaries)]


def _of_arm(name: str, summaries: Sequence[Mapping[str, object]]) -> Iterator[Spent]:
    profiles = [found for summary in summaries if isinstance(found := summary.get("profile"), Mapping)]
    by_place: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for profile in profiles:
        for row in profile["rows"]:
            by_place.setdefault((row["phase"], row["operation"]), []).append(row)
    for phase, operation in sorted(by_place, key=lambda place: PHASES.index(place[0])):
        rows = by_place[phase, operation]
        yield Spent(name, phase, operation, *(sum(row[key] for row in rows) / len(profiles) for key in COLUMNS))


def profile_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm, phase and operation; None where no step was profiled.

    Args:
        launches: the arms.
        label: texts of a language.
    """
    rows = [
        [
            row.arm,
            label(f"profile.{row.phase}", row.phase),
            label(f"profile.{row.operation.replace(' ', '_')}", row.operation),
            *(format_value(getattr(row, key), unit) for key, unit in COLUMNS.items()),
        ]
        for row in spent(launches)
    ]
    said = ("calls", "calls"), ("ms", "time\n(ms)"), ("share", "of the step")
    headings = [label("headings.arm", "arm"), label("profile.phase", "phase"), label("profile.operation", "operation")]
    headings += [label(f"profile.{key}", text) for key, text in said]
    return Table(headings, rows, label("profile.title", TITLE), width=MARKDOWN_WIDTH, keys=3) if rows else None


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """How much of an arm's profiled step is communication.

    Attributes:
        arm: its name.
        step_ms: of a profiled step.
        share: of the step, by the profiler.
        wire_share: the same as the wire timed it; None where it did not.
        of_phase: of each phase that has some; of records without the times of phases, none.
        largest: the operation that takes most, and its part of the step; None where there is none.
        compute_share: of the step, in which something was computed, beside communication too.
    """

    arm: str
    step_ms: float
    share: float
    wire_share: float | None
    of_phase: Mapping[str, float]
    largest: tuple[str, float] | None
    compute_share: float


def bottlenecks(launches: Launches) -> list[Bottleneck]:
    """Of every arm with a profile."""
    return [_bottleneck(name, profiles) for name, summaries in launches.items() if (profiles := _profiles(summaries))]


def _profiles(summaries: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    return [found for summary in summaries if isinstance(found := summary.get("profile"), Mapping)]


def _bottleneck(name: str, profiles: Sequence[Mapping[str, object]]) -> Bottleneck:
    rows = list(_of_arm(name, [{"profile": profile} for profile in profiles]))
    whole = _whole(profiles)
    sent = {row.phase: row.ms for row in rows if row.operation == COMMUNICATION}
    shares: dict[str, float] = {}
    for row in rows:
        if row.operation not in (COMPUTE, COMMUNICATION, BY_ITSELF):
            shares[row.operation] = shares.get(row.operation, 0.0) + row.share
    wire = [value for one in profiles if isinstance(value := one.get("wire_comm_share"), int | float)]
    return Bottleneck(
        arm=name,
        step_ms=_mean(profiles, "step_ms"),
        share=_mean(profiles, "comm_share"),
        wire_share=fmean(wire) if wire else None,
        of_phase={phase: sent[phase] / whole[phase] for phase in PHASES if sent.get(phase) and whole.get(phase)},
        largest=max(shares.items(), key=lambda item: item[1], default=None),
        compute_share=sum(row.share for row in rows if row.operation == COMPUTE),
    )


def _whole(profiles: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """How long each phase was, mean over those launches that say so."""
    told = [found for one in profiles if isinstance(found := one.get("phase_ms"), Mapping)]
    return {phase: fmean(each[phase] for each in told) for phase in (told[0] if told else ())}


def _mean(profiles: Sequence[Mapping[str, object]], key: str) -> float:
    return fmean(float(str(profile[key])) for profile in profiles)


def phases_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm: communication as a part of the step, by both who tell it, and of each phase; None without any."""
    found = bottlenecks(launches)
    headings = [
        label("headings.arm", "arm"),
        *(label(f"profile.{key}", text) for key, text in _HEADINGS.items()),
        *(label(f"profile.of_{phase}", f"of {phase}") for phase in PHASES[:3]),
    ]
    rows = [
        [
            one.arm,
            format_value(one.step_ms, "ms"),
            format_value(one.compute_share, "%"),
            format_value(one.share, "%"),
            format_value(one.wire_share, "%"),
            *(format_value(one.of_phase.get(phase), "%") for phase in PHASES[:3]),
        ]
        for one in found
    ]
    return Table(headings, rows, label("profile.of_phases", OF_PHASES), width=MARKDOWN_WIDTH) if rows else None


_HEADINGS = {
    "step": "step\n(ms)",
    "compute_share": "computing",
    "comm_share": "communication",
    "wire_share": "as the wire timed it",
}


def profile_rows(launches: Launches) -> list[dict[str, object]]:
    """The rows of profile.csv, in full precision."""
    return [asdict(row) for row in spent(launches)]
