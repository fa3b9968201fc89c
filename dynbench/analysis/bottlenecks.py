"""What profiled steps went to, arm by arm, and how much of them is communication: means over launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dynbench.analysis.measure import Summaries
from dynbench.analysis.tables import Launches
from dynbench.runs.records import BY_ITSELF, COMMUNICATION, COMPUTE

Profile = Mapping[str, Any]
"""The `profile` of a summary, also of one that an earlier version wrote."""
PHASES = ("forward", "backward", "optimizer", "other")


def profile_rows(launches: Launches) -> list[dict[str, Any]]:
    """By arm, phase and operation, in this order, means over launches; one without an operation counts as none of it.

    `share` is of the step.
    """
    return [row for name, summaries in launches.items() for row in _of_arm(name, _profiles(summaries))]


def _of_arm(name: str, profiles: Sequence[Profile]) -> Iterator[dict[str, Any]]:
    by_place: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for profile in profiles:
        for row in profile["rows"]:
            by_place.setdefault((row["phase"], row["operation"]), []).append(row)
    for phase, operation in sorted(by_place, key=lambda place: PHASES.index(place[0])):
        rows = by_place[phase, operation]
        means = {key: sum(row[key] for row in rows) / len(profiles) for key in ("calls", "ms", "share")}
        yield {"arm": name, "phase": phase, "operation": operation, **means}


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

    @property
    def of_backward(self) -> float | None:
        """Of the backward pass; None where the times of phases are not known."""
        return self.of_phase.get("backward", 0.0) if self.of_phase or not self.share else None

    @property
    def is_communication(self) -> bool:
        """Whether communication is under way in more of the step than computing is."""
        return self.share > self.compute_share


def bottlenecks(launches: Launches) -> list[Bottleneck]:
    """Of every arm with a profile."""
    return [_bottleneck(name, profiles) for name, summaries in launches.items() if (profiles := _profiles(summaries))]


def _profiles(summaries: Summaries) -> list[Profile]:
    return [found for summary in summaries if isinstance(found := summary.get("profile"), Mapping)]


def _bottleneck(name: str, profiles: Sequence[Profile]) -> Bottleneck:
    rows = list(_of_arm(name, profiles))
    whole = _whole(profiles)
    sent = {row["phase"]: row["ms"] for row in rows if row["operation"] == COMMUNICATION}
    shares: dict[str, float] = {}
    for row in rows:
        if row["operation"] not in (COMPUTE, COMMUNICATION, BY_ITSELF):
            shares[row["operation"]] = shares.get(row["operation"], 0.0) + row["share"]
    wire = [value for one in profiles if isinstance(value := one.get("wire_comm_share"), int | float)]
    return Bottleneck(
        arm=name,
        step_ms=_mean(profiles, "step_ms"),
        share=_mean(profiles, "comm_share"),
        wire_share=fmean(wire) if wire else None,
        of_phase={phase: sent[phase] / whole[phase] for phase in PHASES if sent.get(phase) and whole.get(phase)},
        largest=max(shares.items(), key=lambda item: item[1], default=None),
        compute_share=sum(row["share"] for row in rows if row["operation"] == COMPUTE),
    )


def _whole(profiles: Sequence[Profile]) -> dict[str, float]:
    """How long each phase was, mean over those launches that say so."""
    told = [found for one in profiles if isinstance(found := one.get("phase_ms"), Mapping)]
    return {phase: fmean(each[phase] for each in told) for phase in (told[0] if told else ())}


def _mean(profiles: Sequence[Profile], key: str) -> float:
    return fmean(profile[key] for profile in profiles)
