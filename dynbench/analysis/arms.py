"""Arms, which are launches of the same thing: in what their runs differ, and which launch pairs with which.

Whether runs may differ in a setting or fact is for a question to say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np

from dynbench.analysis.differences import ALWAYS, DEVICES, Differences, with_ranks, with_samples, within
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.questions import DEFAULT, LEVERS, SAMPLES, TOKENS, Question, Unit
from dynbench.analysis.run_facts import device_names, fact, section
from dynbench.config.part_rules import has_lengths
from dynbench.config.ranks import Ranks
from dynbench.config.schema import NOT_IDENTITY, Config, config_digest, flatten
from dynbench.config.schema import differences as config_differences
from dynbench.errors import UsageError, unknown_name
from dynbench.runs.phrase import Phrase

NOT_IDENTITY_OF_ARM = (*NOT_IDENTITY, "analysis")
"""Keys and sections in which launches of one arm may differ."""

ENVIRONMENT = ("dynbench", "python", "cpu_model", "packages.torch", "packages.transformers", "packages.numpy")
"""Facts of env.json that must agree, where both runs know them."""

_NOT_COMPARED = (
    "collected",
    "seed",
    "config_digest",
    "plugins",
    "load_average",
    "clocks",
    "memory_mb.available",
    "ranks",
    "together.id",
    "together.runs",
    "together.arms",
    "together.seed",
    "together.launch",
    "packed_rows",
    "memory_parts",
    "unknown",
    "environment.SLURM_JOB_ID",
    "environment.DYNBENCH_CACHE",
    "environment.DYNBENCH_RESULTS",
    "data.train_source",
    "data.eval_source",
    "devices.ranks.rank",
)
"""Facts and sections of env.json that differ between equal launches: the moment, names of places and jobs, numbers of
ranks, what restates or proves the configuration, and plug-ins, of which `all_differences` compares those that both have
loaded. Every other fact is compared; one that differs is worth a warning."""

_FINGERPRINT = "data.fingerprint"
_DECISIONS = ("decisions.", "data.decisions.")
_MEASURED = {"measured.torch_threads": "launch.threads"}
"""Decisions that say what became of a setting."""


def all_differences(a: MergedRun, b: MergedRun) -> Differences:
    """Everything in which two runs differ that is compared, or could forbid it: settings, ranks, and environment."""
    settings = a.facts.config, b.facts.config
    found = with_samples(config_differences(*settings), *settings)
    _add_facts(found, a, b, *ENVIRONMENT, _FINGERPRINT, "data.model.digest")
    plugins, others_plugins = (section(run.facts.env, "plugins") for run in (a, b))
    for name, digest in plugins.items():
        _add_if_different(found, f"env.plugins.{name}", digest, others_plugins.get(name))
    trained, others = Ranks(a.world_size, a.facts.servers), Ranks(b.world_size, b.facts.servers)
    first = (trained.servers, others.servers) if trained.workers == others.workers else (0, 0)
    names = (device_names(run.facts.env, after) for run, after in zip((a, b), first, strict=True))
    _add_if_different(found, DEVICES, *names)
    return with_ranks(found, trained, others)


def launch_differences(runs: Sequence[Config]) -> Differences:
    """The settings in which launches of one arm differ, though they may not: the first's, and the first other value."""
    first, *others = runs
    found: dict[str, tuple[object, object]] = {}
    for other in others:
        found = {**config_differences(first, other), **found}
    return {key: values for key, values in found.items() if not within(key, NOT_IDENTITY_OF_ARM)}


def environment_differences(a: MergedRun, b: MergedRun, question: Question = DEFAULT) -> Differences:
    """Facts of env.json that differ and could move a number, `_NOT_COMPARED` left out.

    A fact that only one run has differs too, as a variable that only one had set. Of the data of runs of different
    seeds the fingerprint alone is compared, and that only where no other samples follow from another seed. What was
    decided may differ where the arms may.
    """
    left, right = dict(_leaves(a.facts.env)), dict(_leaves(b.facts.env))
    left_out = _NOT_COMPARED if a.facts.seed == b.facts.seed else (*_NOT_COMPARED, "data")
    may_differ = (*ALWAYS, *LEVERS.asks, *question.asks, *question.follows)
    found = {
        f"env.{key}": (left.get(key), right.get(key))
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
        and not within(key, left_out)
        and not (key.startswith(_DECISIONS) and _follows_from_the_arm(key, left, right, may_differ))
    }
    workloads = [run.facts.config.workload for run in (a, b)]
    # Another seed may give other samples: another subset, or what code of the user's own makes of it.
    if not any(each.subset is not None or each.runs_own_code for each in workloads):
        _add_facts(found, a, b, _FINGERPRINT)
    return found


def _follows_from_the_arm(
    key: str, left: Mapping[str, object], right: Mapping[str, object], may_differ: Sequence[str]
) -> bool:
    """Whether a decision differs because the configurations do; one that was set in one run is in its configuration."""
    decided, _, part = key.removeprefix("data.").removeprefix("decisions.").rpartition(".")
    setting = _MEASURED.get(decided, decided)
    return part == "reason" or within(setting, may_differ) or key not in left or key not in right


def _leaves(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted path and value of every fact; lists of mappings, as of ranks, by field, one value where all agree."""
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, list) and item and all(isinstance(part, Mapping) for part in item):
            fields = {field: [part.get(field) for part in item] for field in dict.fromkeys(f for p in item for f in p)}
            item = {field: each[0] if all(one == each[0] for one in each) else each for field, each in fields.items()}
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{path}.")
        else:
            yield path, item


def compared_settings(differences: Differences, question: Question) -> Differences:
    """The settings that differ and may, and launches of one arm do not differ in: what the comparison is about."""
    permitted = question.permitted(differences)
    return {
        key: values
        for key, values in differences.items()
        if key in permitted and "." in key and not key.startswith("env.") and not within(key, NOT_IDENTITY_OF_ARM)
    }


def alike(pairs: Sequence[tuple[MergedRun, MergedRun]]) -> bool:
    """Whether the runs of every pair differ in nothing that is compared or forbids it: an A/A comparison."""
    ignored = tuple(key for key in NOT_IDENTITY_OF_ARM if within(key, ALWAYS))
    return all(within(key, ignored) for pair in pairs for key in all_differences(*pair))


def describe(differences: Differences) -> Phrase:
    """`train.seed (0 and 1), env.cpu_model (…)` in one line."""

    def said(value: object) -> str:
        return value if isinstance(value, Phrase) else str(value)

    items = [Phrase.of("difference", key=key, first=said(a), second=said(b)) for key, (a, b) in differences.items()]
    return Phrase.of("list", items=items)


def _add_facts(found: dict[str, tuple[object, object]], a: MergedRun, b: MergedRun, *keys: str) -> None:
    for key in keys:
        _add_if_different(found, f"env.{key}", fact(a.facts.env, key), fact(b.facts.env, key))


def _add_if_different(found: dict[str, tuple[object, object]], key: str, a: object, b: object) -> None:
    if a is not None and b is not None and a != b:
        found[key] = (a, b)


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
    groups: list[list[MergedRun]] = []
    for run in runs:
        group = next((group for group in groups if all(_are_launches(run, other) for other in group)), None)
        if group is None:
            groups.append(group := [])
        group.append(run)
    return [_arm(label, group) for label, group in zip(_labels(groups), groups, strict=True)]


def _are_launches(a: MergedRun, b: MergedRun) -> bool:
    """Whether two runs are of one configuration, and of one data, which runs of two seeds may have subsets of."""
    one, other = (config_digest(run.facts.config, NOT_IDENTITY_OF_ARM) for run in (a, b))
    fingerprints = {fact(run.facts.env, "data.fingerprint") for run in (a, b)} - {None}
    return one == other and (a.facts.seed != b.facts.seed or len(fingerprints) < 2)


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
    known = [arm.label for arm in arms]
    if label not in known:
        raise unknown_name(f"--baseline {label}: no such arm", label, known, "There are")
    stored = next((arm.label for arm in arms if arm.stored), label)
    if stored != label:
        raise UsageError(
            f"--baseline {label}: the arms are compared with {stored}, which comes from an exported file",
            "Leave --baseline out, or analyze the runs without that file.",
        )
    return sorted(arms, key=lambda arm: arm.label != label)


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


class Pairing(NamedTuple):
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
            [run for run in arm.runs if run.facts.seed == seed and (not shared or run.facts.launch_id is None)]
            for arm in (baseline, candidate)
        ]
        pairs += _of_one_seed(arms[0], arms[1], usable)
    partners = {run.run.id: other for pair in pairs for run, other in (pair, pair[::-1])}
    complete = sorted(_whole(pairs, usable), key=lambda pair: pair[0].facts.started)
    paired = {run.run.id for pair in complete for run in pair}
    left_out = [
        _reason(run, partners.get(run.run.id), run.run.id in usable)
        for run in launches
        if run.run.id not in paired and not _is_with_others(run, pairs, shared)
    ]
    return Pairing(tuple(complete), tuple(left_out))


def _is_with_others(run: MergedRun, pairs: Sequence[Pair], shared: Collection[str]) -> bool:
    """Whether a run is in a launch shared with other arms, and its arm has another run of its block that is paired."""
    paired = {one.facts.seed for pair in pairs for one in pair}
    return run.facts.launch_id is not None and run.run.id not in shared and run.facts.seed in paired


def _reason(run: MergedRun, partner: MergedRun | None, usable: bool) -> str:
    if not usable:
        return f"{run.label} is partial ({'; '.join(run.lacks)})"
    if partner is None:
        return f"{run.label} has no partner with seed {run.facts.seed}"
    return f"{run.label} ran beside {partner.label}, which is partial"


def _of_one_launch(first: Sequence[MergedRun], second: Sequence[MergedRun]) -> list[Pair]:
    """Pairs of two arms' runs that shared a launch, partial ones among them."""
    launches = dict.fromkeys(run.facts.launch_id for run in first if run.facts.launch_id is not None)
    sides = [[[run for run in arm if run.facts.launch_id == launch] for arm in (first, second)] for launch in launches]
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
    starts = [
        np.array([datetime.fromisoformat(run.facts.started).timestamp() for run in arm]) for arm in (first, second)
    ]
    apart = np.abs(np.subtract.outer(*starts))
    places = np.argsort(np.argsort(np.concatenate(starts), kind="stable"), kind="stable")
    beside = np.abs(np.subtract.outer(places[: len(first)], places[len(first) :])) == 1
    near = _match(np.where(beside, apart, np.inf))
    couples = near if 2 * len(near) > min(len(first), len(second)) else _match(apart)
    return [(first[row], second[column]) for row, column in couples]


def _match(distance: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns paired in order: most pairs of finite distance, then the least sum of distances."""
    from scipy.optimize import linear_sum_assignment

    possible = np.isfinite(distance)
    none = 1 + distance[possible].sum()  # more than all pairs together
    rows, columns = linear_sum_assignment(np.where(possible, distance, none))
    paired = possible[rows, columns]
    return list(zip(rows[paired].tolist(), sorted(columns[paired].tolist()), strict=True))


def unit_of(merged: MergedRun) -> Unit:
    """What the work of a run is counted in."""
    return TOKENS if has_lengths(merged.facts.config) else SAMPLES


Part = tuple[float, float]
"""From which to which fraction of its measured steps a launch is looked at."""


def seconds_per_unit(merged: MergedRun, unit: Unit = TOKENS, part: Part | None = None) -> float:
    """Time of the measured steps over their work, seconds; of a part of them, by the maximum over ranks of each."""
    steps, time_ms = merged.measured, merged.time_ms
    if part is not None:
        first, last = (fraction * steps.height for fraction in part)
        steps = steps[math.floor(first) : math.ceil(last)]
        time_ms = float(steps["step_time_max_ms"].sum())
    return time_ms / 1000 / float(steps[unit.column].sum())


def log_ratios(pairs: Sequence[Pair], unit: Unit, part: Part | None = None) -> list[float]:
    """Logarithm of every pair's ratio, in order of seeds; of all measured steps or of a part of them."""
    return [
        float(np.log(seconds_per_unit(one, unit, part) / seconds_per_unit(other, unit, part)))
        for one, other in by_seed(pairs)
    ]


def by_seed(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs in order of seeds, as a comparison numbers its launches."""
    return sorted(pairs, key=lambda pair: pair[0].facts.seed)
