"""Arms, which are launches of the same thing, and which launch of one is paired with which of another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from dynbench.analysis.comparability import NOT_IDENTITY_OF_ARM
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.question import SAMPLES, TOKENS, Unit
from dynbench.analysis.run_facts import fact
from dynbench.analysis.stats import Ratio, paired_ratio
from dynbench.config.digest import NOT_IDENTITY, config_digest, flatten
from dynbench.config.image_rules import has_lengths
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
    return [_arm(label, group) for label, group in zip(_labels(members), members, strict=True)]


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
    return [_arm(label, runs) for label, runs in arms.items()]


def stored_arm(label: str, runs: Sequence[MergedRun], others: Sequence[Arm]) -> Arm:
    """A baseline from an exported file, under a label that none of the other arms has."""
    taken = {arm.label for arm in others}
    while label in taken:
        label += " (stored)"
    return replace(_arm(label, runs), stored=True)


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


def _arm(label: str, runs: Iterable[MergedRun]) -> Arm:
    return Arm(label, tuple(sorted(runs, key=lambda run: run.facts.started)))


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


Pair = tuple[MergedRun, MergedRun]


@dataclass(frozen=True)
class Pairing:
    """The pairs of two arms.

    Attributes:
        pairs: baseline's launch and candidate's, in the order in which the baseline's started.
        left_out: launches that are in no pair, each with the reason.
    """

    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]


def pair_launches(baseline: Arm, candidate: Arm, *, partial: bool = False) -> Pairing:
    """Pairs runs that took turns in one launch, and of the others launches of equal seed that follow each other.

    Arms that never shared a launch are paired as if they had been launched apart.

    In ABBA order (the arms in order, then reversed, repeated) these are the launches of one block. A launch that is
    partial or gone takes its partner with it, and no other pair changes: shifted pairs would lie further apart, all in
    the same direction, and a drift of the machine would become a difference of the arms. `compare` gives the launches
    of a block a seed of their own, so that they pair whenever they ran.

    Args:
        baseline: the arm compared with.
        candidate: the arm compared.
        partial: keep pairs with a partial launch, as long as it has a measured step, instead of leaving them out.
    """
    launches = (*baseline.runs, *candidate.runs)
    pairs = _of_one_launch(baseline.runs, candidate.runs)
    shared = {run.run.id for pair in pairs for run in pair}
    usable = {run.run.id for run in launches if run.measured.height and (partial or not run.partial)}
    for seed in dict.fromkeys(run.facts.seed for run in launches):
        arms = [
            [run for run in arm.runs if run.facts.seed == seed and (not shared or run.facts.together is None)]
            for arm in (baseline, candidate)
        ]
        pairs += _of_one_seed(arms[0], arms[1], usable)
    partners = {run.run.id: other for pair in pairs for run, other in (pair, pair[::-1])}
    kept = sorted(_whole(pairs, usable), key=lambda pair: pair[0].facts.started)
    paired = {run.run.id for pair in kept for run in pair}
    left_out = [
        _reason(run, partners.get(run.run.id), run.run.id in usable)
        for run in launches
        if run.run.id not in paired and not _is_with_others(run, pairs, shared)
    ]
    return Pairing(tuple(kept), tuple(left_out))


def _is_with_others(run: MergedRun, pairs: Sequence[Pair], shared: Collection[str]) -> bool:
    """Whether a run is in a launch shared with other arms, and its arm has another run of its block that is paired."""
    paired = {one.facts.seed for pair in pairs for one in pair}
    return run.facts.together is not None and run.run.id not in shared and run.facts.seed in paired


def _reason(run: MergedRun, partner: MergedRun | None, usable: bool) -> str:
    if not usable:
        return f"{run.label} is partial ({'; '.join(run.lacks)})"
    if partner is None:
        return f"{run.label} has no partner with seed {run.facts.seed}"
    return f"{run.label} ran beside {partner.label}, which is partial"


def _of_one_launch(first: Sequence[MergedRun], second: Sequence[MergedRun]) -> list[Pair]:
    """Pairs of two arms' runs that shared a launch, partial ones among them."""
    launches = dict.fromkeys(run.facts.together for run in first if run.facts.together is not None)
    sides = [[[run for run in arm if run.facts.together == launch] for arm in (first, second)] for launch in launches]
    return [pair for one, other in sides for pair in zip(one, other, strict=False)]


def _of_one_seed(first: Sequence[MergedRun], second: Sequence[MergedRun], usable: Collection[str]) -> list[Pair]:
    """Pairs of two arms' launches, partial ones in their places.

    A whole launch left without a partner may repeat a partial one: then the partial ones lose their places where that
    gives more pairs.
    """
    pairs = _couples(first, second)
    paired = {run.run.id for pair in pairs for run in pair}
    if all(run.run.id in paired or run.run.id not in usable for run in (*first, *second)):
        return pairs
    repeated = _couples(*([run for run in arm if run.run.id in usable] for arm in (first, second)))
    return repeated if len(repeated) > len(_whole(pairs, usable)) else pairs


def _whole(pairs: Sequence[Pair], usable: Collection[str]) -> list[Pair]:
    return [pair for pair in pairs if all(run.run.id in usable for run in pair)]


def _couples(first: Sequence[MergedRun], second: Sequence[MergedRun]) -> list[Pair]:
    """Launches of two arms paired in order, so that as many as can be have a partner and the least time lies between.

    Arms that took turns pair with neighbours only. Where most launches have no neighbour of the other arm, the arms ran
    one after the other, and pairs lie as far apart as they must.
    """
    starts = [np.array([_started_s(run) for run in arm]) for arm in (first, second)]
    apart = np.abs(np.subtract.outer(*starts))
    places = np.argsort(np.argsort(np.concatenate(starts), kind="stable"), kind="stable")
    beside = np.abs(np.subtract.outer(places[: len(first)], places[len(first) :])) == 1
    near = _match(np.where(beside, apart, np.inf))
    couples = near if 2 * len(near) > min(len(first), len(second)) else _match(apart)
    return [(first[row], second[column]) for row, column in couples]


def _started_s(run: MergedRun) -> float:
    return datetime.fromisoformat(run.facts.started).timestamp()


def _match(distance: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns paired in order: most pairs of finite distance, then the least sum of distances."""
    rows, columns = distance.shape
    best: list[list[tuple[int, float]]] = [[(0, 0.0)] * (columns + 1) for _ in range(rows + 1)]

    def paired(row: int, column: int) -> tuple[int, float]:
        fewer, length = best[row][column]
        return fewer - 1, length + float(distance[row, column])

    for row in range(rows):
        for column in range(columns):
            skipped = min(best[row][column + 1], best[row + 1][column])
            possible = np.isfinite(distance[row, column])
            best[row + 1][column + 1] = min(skipped, paired(row, column)) if possible else skipped
    found, row, column = [], rows, columns
    while row and column:
        if best[row][column] == best[row - 1][column]:
            row -= 1
        elif best[row][column] == best[row][column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            found.append((row, column))
    return found[::-1]


def unit_of(merged: MergedRun) -> Unit:
    """What the work of a run is counted in."""
    return TOKENS if has_lengths(merged.facts.config) else SAMPLES


def seconds_per_unit(merged: MergedRun, unit: Unit = TOKENS) -> float:
    """Time of the measured steps over their work, seconds."""
    return merged.time_ms / 1000 / float(merged.measured[unit.column].sum())


def speedup_of(pairs: Sequence[Pair], unit: Unit, confidence: float, first: int | None = None) -> Ratio:
    """The ratio of the arms of the pairs, with its interval.

    Args:
        pairs: launches of the one arm and of the other.
        unit: of work.
        confidence: level of the interval.
        first: launches of the first stage, whose spread is kept; those of the lowest seeds, as a comparison numbers its
            launches, so that one that had to be repeated later stays in its stage.
    """
    before, after = ([seconds_per_unit(pair[side], unit) for pair in _by_seed(pairs)] for side in (0, 1))
    return paired_ratio(before, after, confidence, first)


def log_ratios(pairs: Sequence[Pair], unit: Unit) -> list[float]:
    """Logarithm of every pair's ratio, in order of seeds."""
    return [
        float(np.log(seconds_per_unit(one, unit) / seconds_per_unit(other, unit))) for one, other in _by_seed(pairs)
    ]


def _by_seed(pairs: Sequence[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: pair[0].facts.seed)
