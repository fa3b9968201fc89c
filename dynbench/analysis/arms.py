"""Arms: which runs are launches of the same thing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbench.analysis.comparability import NOT_IDENTITY_OF_ARM, fact
from dynbench.analysis.merge import MergedRun
from dynbench.config.digest import NOT_IDENTITY, config_digest, flatten
from dynbench.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Attributes:
        label: name in tables, figures and verdicts; unique among the arms compared.
        runs: its launches in the order in which they started.
        stored: they come from an exported file, and what they are compared with does not: whatever lies between the two
            sessions is compared too.
    """

    label: str
    runs: tuple[MergedRun, ...]
    stored: bool = False

    @property
    def whole(self) -> tuple[MergedRun, ...]:
        """What tables and figures show: the launches that are not partial; where all are, all."""
        return tuple(run for run in self.runs if not run.partial) or self.runs


def group_runs(runs: Sequence[MergedRun]) -> list[Arm]:
    """Runs of equal configuration, but for the seed and where they ran, as one arm; in order of first mention.

    Not where runs of one seed had other data, as of a file that was changed between them.
    """
    groups: dict[str, list[list[MergedRun]]] = defaultdict(list)
    for merged in runs:
        alike = groups[config_digest(merged.run.config(), NOT_IDENTITY_OF_ARM)]
        group = next((group for group in alike if all(_of_one_data(merged, other) for other in group)), None)
        if group is None:
            alike.append(group := [])
        group.append(merged)
    members = [group for alike in groups.values() for group in alike]
    return [
        Arm(label, tuple(sorted(group, key=_started))) for label, group in zip(_labels(members), members, strict=True)
    ]


def _of_one_data(a: MergedRun, b: MergedRun) -> bool:
    """Whether two runs may have had the same data: those of different seeds may be different subsets of it."""
    fingerprints = {fact(run.facts.env, "data.fingerprint") for run in (a, b)} - {None}
    return a.facts.seed != b.facts.seed or len(fingerprints) < 2


def named_arms(arms: Mapping[str, Sequence[MergedRun]]) -> list[Arm]:
    """Arms as an experiment names them, also where their configurations are equal (A/A).

    Raises:
        UsageError: an arm without a run.
    """
    for label, runs in arms.items():
        if not runs:
            raise UsageError(f"arm {label!r} has no run that can be analyzed", "Launch it, or leave the arm out.")
    return [Arm(label, tuple(sorted(runs, key=_started))) for label, runs in arms.items()]


def stored_arm(label: str, runs: Sequence[MergedRun], others: Sequence[Arm]) -> Arm:
    """A baseline from an exported file, under a label that none of the other arms has."""
    taken = {arm.label for arm in others}
    while label in taken:
        label += " (stored)"
    return Arm(label, tuple(sorted(runs, key=_started)), stored=True)


def led_by(label: str, arms: Sequence[Arm]) -> list[Arm]:
    """The arms with that of a label first, as the baseline.

    Raises:
        UsageError: no arm has the label, or another one is stored, with which all others are compared.
    """
    check_label(label, [arm.label for arm in arms])
    stored = next((arm.label for arm in arms if arm.stored), label)
    if stored != label:
        raise UsageError(
            f"--baseline {label}: the arms are compared with {stored}, which comes from an exported file",
            "Leave --baseline out, or analyze the runs without that file.",
        )
    return sorted(arms, key=lambda arm: arm.label != label)


def check_label(label: str, known: Sequence[str]) -> None:
    """Refuses a label that no arm has.

    Raises:
        UsageError: with the nearest one, and all that there are.
    """
    if label not in known:
        raise UsageError(
            f"--baseline {label}: no such arm. {did_you_mean(label, known)}".rstrip(), f"There are: {', '.join(known)}."
        )


def _started(merged: MergedRun) -> str:
    return merged.facts.started


def _labels(groups: Sequence[Sequence[MergedRun]]) -> list[str]:
    """The name of the plans where it tells the arms apart; else the run's name, or that with what differs."""
    plans = Counter(group[0].facts.plan_name for group in groups)
    labels = []
    for first, *others in groups:
        plan = first.facts.plan_name
        if plans[plan] == 1:
            labels.append(plan)
        elif first.run.name and not others:
            labels.append(first.label)
        else:
            rivals = [group for group in groups if group[0].facts.plan_name == plan]
            labels.append(f"{plan} ({_distinctive(first, rivals)})")
    repeated = Counter(labels)
    return [label if repeated[label] == 1 else f"{label} #{index + 1}" for index, label in enumerate(labels)]


def _distinctive(run: MergedRun, groups: Sequence[Sequence[MergedRun]]) -> str:
    """The settings of a run that not all arms share, at most three."""
    own, others = flatten(run.facts.config), [flatten(group[0].facts.config) for group in groups]
    differing = [
        f"{key.partition('.')[2]}={value}"
        for key, value in own.items()
        if key not in NOT_IDENTITY and any(other[key] != value for other in others)
    ]
    return ", ".join(differing[:3]) or run.run.id
