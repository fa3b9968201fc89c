"""Before a comparison begins: whether its arms can run and be compared, what it is warned about, how long it takes.

How long is known by earlier runs of the same settings; nothing is guessed where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbench.analysis.arms import NOT_IDENTITY_OF_ARM, describe
from dynbench.analysis.differences import settings_differences
from dynbench.analysis.questions import QUESTIONS, Question, find_question, not_comparable
from dynbench.config.recipes import Recipe
from dynbench.config.rules import rule_warnings
from dynbench.config.schema import Config, config_digest
from dynbench.config.unread import unread
from dynbench.engine.launching.probe_use import probe_warnings
from dynbench.engine.launching.resolve import resolve, this_machine, use_of
from dynbench.engine.launching.torchrun import started_as_rank
from dynbench.engine.plan_check import check_plan, total_steps
from dynbench.errors import ConfigError, NothingFits, RecordError, UsageError, did_you_mean
from dynbench.experiment.launch_plan import Grouping, decide_grouping
from dynbench.runs.run import Status, duration_s
from dynbench.runs.store import RunStore
from dynbench.units import format_ms
from dynbench.workloads.inputs import check_batch, check_inputs

ANY_LENGTH = (*NOT_IDENTITY_OF_ARM, "train.steps", "train.epochs", "train.warmup_steps")
LIKENESSES = (ANY_LENGTH, (*ANY_LENGTH, "schedule", "probe"))
"""Keys and sections in which a run that an arm is estimated by may differ from it; the first to find a run counts."""
MOST_RUNS = 50
"""Youngest training runs that are looked at."""


@dataclass(frozen=True)
class Startable:
    """A comparison that can begin.

    Attributes:
        question: about the arms, named or found.
        grouping: which of them share launches.
    """

    question: Question
    grouping: Grouping


def check_startable(recipe: Recipe, store: RunStore) -> Startable:
    """Refuse, before anything is made, what could not end well.

    Raises:
        NotComparable: arms that differ in more than may be compared.
        UsageError, NothingFits: this process is itself a rank, or an arm cannot run here or be planned.
        ConfigError, RunLookupError, RecordError: settings that cannot work, or a probe that an arm cannot use.
        DataError: a file or a folder that an arm cannot use.
    """
    if started_as_rank(recipe.arms[recipe.baseline]):
        raise UsageError(
            "compare launches its own ranks, and was started as one", "Start it outside of torchrun and srun."
        )
    store.check_place()
    resolved = resolved_arms(recipe, store)
    question = _check_comparable(recipe, resolved)
    if recipe.launches.half_width is not None and resolved[recipe.baseline].launch.nnodes > 1:
        raise UsageError(
            "launches.half_width: on several nodes each would count launches for itself",
            "Give a number: --launches N; the check `resolution` says how many would decide.",
        )
    grouping = decide_grouping(recipe.launches, resolved, recipe.baseline)
    workloads = {name: config.workload.model_dump_json() for name, config in recipe.arms.items()}
    one_of = {workload: recipe.arms[name] for name, workload in workloads.items()}
    splits = {workload: check_inputs(config) for workload, config in one_of.items()}
    for name, config in resolved.items():
        check_batch(config, splits[workloads[name]])
    return Startable(question, grouping)


def resolved_arms(recipe: Recipe, store: RunStore) -> Mapping[str, Config]:
    """Every arm's settings as they are decided here, or what is wrong with all of them at once."""
    arms: dict[str, Config] = {}
    problems: dict[str, None] = {}
    hint = ""
    if recipe.question is not None and recipe.question not in QUESTIONS:
        near = did_you_mean(recipe.question, QUESTIONS)
        problems[f"question: {recipe.question!r} is not asked. {near} Allowed: {', '.join(QUESTIONS)}"] = None
    for name, config in recipe.arms.items():
        try:
            resolved = resolve(config, this_machine(), store)
            check_plan(resolved.config, resolved.workers, store.root, recipe.launches.planned)
            arms[name] = resolved.config
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
            hint = error.hint
        except NothingFits as error:
            raise type(error)(f"arm {name}: {error.message}", error.hint) from error
    if problems:
        raise ConfigError(list(problems), hint)
    return arms


def _check_comparable(recipe: Recipe, arms: Mapping[str, Config]) -> Question:
    """The question that the arms answer. Refuse, before anything is launched, what the analysis would refuse after it.

    It will see the settings resolved: `auto` and the value that it means are the same.
    """
    found = {name: settings_differences(arms[recipe.baseline], config) for name, config in arms.items()}
    question = find_question(list(found.values()), recipe.question)
    for name, differing in found.items():
        if forbidden := question.forbidden(differing):
            who = f"recipe {recipe.name}: arms {recipe.baseline} and {name}"
            hint = "Give these keys under settings, the same for all arms."
            raise not_comparable(who, describe(forbidden), question, list(found.values()), hint)
    return question


def recipe_warnings(recipes: Sequence[Recipe], store: RunStore) -> list[str]:
    """What its launches would say again and again, and settings that no arm with that value reads; a line each.

    Args:
        recipes: the comparisons, several where the recipe has cells.
        store: registry in which probe runs are looked up.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    arms = [config for recipe in recipes for config in recipe.arms.values()]
    pairs = [(config, resolve(config, this_machine(), store)) for config in arms]
    uses = [use_of(config, resolved) for config, resolved in pairs]
    lines: list[str] = []
    for use, (_, resolved) in zip(uses, pairs, strict=True):
        lines += rule_warnings(resolved.config, resolved.world_size, ())
        if not use.probes:
            lines += probe_warnings(resolved.config, resolved.workers, store.root)
    return [*dict.fromkeys(lines), *unread("train", uses)]


def arms_alike(recipe: Recipe, store: RunStore) -> list[list[str]]:
    """Names of arms that are configured alike once `auto` is decided (A/A), in groups.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    groups: dict[str, list[str]] = {}
    for name, config in recipe.arms.items():
        resolved = resolve(config, this_machine(), store).config
        groups.setdefault(config_digest(resolved, NOT_IDENTITY_OF_ARM), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


@dataclass(frozen=True)
class Estimate:
    """Of all launches of a comparison.

    Attributes:
        seconds: how long they take, without probes; None where the like of one was never run.
        runs: ids of the runs that they were estimated by.
    """

    seconds: float | None
    runs: Sequence[str] = ()

    def __str__(self) -> str:
        """In a line."""
        if self.seconds is None:
            return "time unknown: no completed run here has the same model, data, batch and ranks"
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"about {format_ms(1000 * round(self.seconds))}, by the time of {self.runs[0]}{more}"


def estimate(recipes: Sequence[Recipe], store: RunStore) -> Estimate:
    """By the latest completed run of each arm's settings, in proportion to the steps; else by one of another schedule.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    known, seconds, runs = _known_steps(store), 0.0, dict[str, None]()
    for recipe in recipes:
        for arm in recipe.arms.values():
            config = resolve(arm, this_machine(), store).config
            digests = (config_digest(config, ignored) for ignored in LIKENESSES)
            like = next((known[digest] for digest in digests if digest in known), None)
            if like is None:
                return Estimate(None)
            run, step_s = like
            seconds += recipe.launches.planned * step_s * total_steps(config)
            runs[run] = None
    return Estimate(seconds, list(runs))


def _known_steps(store: RunStore) -> dict[str, tuple[str, float]]:
    """Digest of the settings that count, for each likeness, to the youngest completed run that had them.

    Beside its id stand its seconds per step, start and end included; of a shared launch, the arm's part.
    """
    found: dict[str, tuple[str, float]] = {}
    trained = [(run, record) for run, record in store.entries() if record.command == "train"]
    for run, record in trained[: -MOST_RUNS - 1 : -1]:
        took_s = duration_s(record)
        if record.status is not Status.COMPLETED or took_s is None:
            continue
        try:
            config, shared = run.config(), run.env().get("together") if run.env_file.exists() else None
        except RecordError:  # a broken run of another day is no reason to fail this one
            continue
        arms = len(shared["arms"]) if isinstance(shared, dict) and "arms" in shared else 1
        for ignored in LIKENESSES:
            found.setdefault(config_digest(config, ignored), (run.id, took_s / arms / total_steps(config)))
    return found
