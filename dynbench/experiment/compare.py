"""A whole comparison: every arm launched in a fair order, analyzed, reported; interrupted, it goes on."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from dynbench.analysis.analyze import Report as Analysed
from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.arms import describe, launch_differences
from dynbench.analysis.record import ComparisonRecord, Finding
from dynbench.analysis.selection import Selection
from dynbench.config.part_rules import has_lengths
from dynbench.config.recipes import RECIPE_FILE, Launches, Recipe, dump_recipe, load_recipe
from dynbench.config.schema import changed, dump_config
from dynbench.engine.launching.run_launch import warnings_said_once
from dynbench.errors import ConfigError, DynbenchError, NotComparable, NothingFits, StorageError, UsageError
from dynbench.experiment.launch_plan import CompareState, plan_state, read_state
from dynbench.experiment.launches import OnProgress, completed_runs, plan_second_stage, run_launches
from dynbench.experiment.offline_plans import plan_offline
from dynbench.experiment.preflight import check_startable, resolved_arms
from dynbench.experiment.report_input import read_report_input
from dynbench.experiment.reporting import FORMATS, write_report
from dynbench.experiment.training import make_probe, probe_identity, wants_probe
from dynbench.runs.atomic import write_text
from dynbench.runs.recorder import made, recorded
from dynbench.runs.run import Run, refuse_running
from dynbench.runs.store import Naming, RunStore, results_option
from dynbench.workloads.own_code import own_code_settings

_log = logging.getLogger(__name__)
_GO_ON = "Go on with:"
_ANEW = "start anew (--replace takes the name over)."
OnStage = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A finished comparison.

    Attributes:
        run: its folder.
        launches: how many, and how they share processes.
        state: its launches.
        analysed: runs, verdicts and checks.
        reports: the report files.
        figures: PNG files, those of the plans made offline among them.
    """

    run: Run
    launches: Launches
    state: CompareState
    analysed: Analysed
    reports: Sequence[Path]
    figures: Sequence[Path]

    @property
    def findings(self) -> Sequence[Finding]:
        """What the checks found."""
        return self.analysed.findings

    @property
    def comparisons(self) -> Sequence[Sequence[ComparisonRecord]]:
        """What its candidates showed, as one comparison of several has it."""
        return [self.analysed.record().comparisons]

    def as_dict(self) -> dict[str, object]:
        """What `compare --json` prints."""
        return {
            **self.analysed.record().as_dict(),
            "command": "compare",
            "run": self.run.reference,
            "recipe": self.state.recipe,
            "launches": {
                "mode": self.state.mode,
                "reason": self.state.reason,
                "count": self.state.blocks,
                "block": self.launches.block,
                "half_width": self.launches.half_width,
            },
            "reports": self.reports,
            "figures": self.figures,
        }


def start_comparison(recipe: Recipe, store: RunStore, **naming: Unpack[Naming]) -> Run:
    """Register a comparison with all its launches planned; none has begun.

    Raises:
        RunLookupError: the name is in use.
        UsageError: the results folder cannot be written.
        DynbenchError: as `check_startable`.
    """
    grouping = check_startable(recipe, store).grouping
    recipe = _pinned(recipe)
    if not on_first_node(recipe):
        naming["name"] = None
    seeds = {arm: config.train.seed for arm, config in recipe.arms.items()}
    with made(store, "compare", recipe.name, **naming) as comparison:
        write_text(comparison.path / RECIPE_FILE, dump_recipe(recipe))
        write_text(comparison.config_file, dump_config(recipe.arms[recipe.baseline]))
        state = plan_state(recipe.name, recipe.baseline, grouping, recipe.launches.planned, seeds)
        replace(state, recipe_digest=_recipe_digest(comparison)).write(comparison.path)
    return comparison


def on_first_node(recipe: Recipe) -> bool:
    """Whether this node, of several that start the same comparison, is the one whose entry has the name."""
    return recipe.arms[recipe.baseline].launch.node_rank == 0


def _pinned(recipe: Recipe) -> Recipe:
    """The recipe with the digest of code of the user's own, so that every launch runs the same, also resumed."""
    found = {name: own_code_settings(config.workload) for name, config in recipe.arms.items()}
    arms = {
        name: changed(recipe.arms[name], {f"workload.{key}": value for key, value in settings.items()})
        for name, settings in found.items()
    }
    return replace(recipe, arms=arms)


def _recipe_digest(comparison: Run) -> str:
    return hashlib.sha256((comparison.path / RECIPE_FILE).read_bytes()).hexdigest()[:16]


def _started_with(comparison: Run) -> Recipe:
    """The recipe that a comparison was started with.

    Raises:
        ConfigError, UsageError: it cannot be read, or is another now.
        RecordError: the comparison's state cannot be read.
    """
    restore = f"Restore the file, or {_ANEW}"
    try:
        recipe = load_recipe(comparison.path / RECIPE_FILE)
    except ConfigError as error:
        error.hint = error.hint or restore
        raise
    if read_state(comparison.path).recipe_digest not in (None, _recipe_digest(comparison)):
        raise UsageError(f"{comparison.path / RECIPE_FILE}: was changed since the comparison was started", restore)
    return recipe


def run_comparison(
    comparison: Run, store: RunStore, on_progress: OnProgress = lambda _: None, on_stage: OnStage = lambda _: None
) -> Outcome:
    """Launch what is missing, then analyze and report.

    Args:
        comparison: what `start_comparison` made, also one that was interrupted.
        store: registry of the launches.
        on_progress: called with how far the launches are.
        on_stage: called with what is done after them, in a few words.

    Raises:
        RecordError: the comparison's files cannot be read.
        UsageError: another process is at it, or its recipe was changed.
        NotComparable: a launch that is done is not what one made now would be.
        DynbenchError: a launch ended so; what is done is kept, and the hint says how to go on.
    """
    refuse_running(comparison)
    recipe = _started_with(comparison)
    store = store.within(comparison)
    with resumable(comparison), warnings_said_once():
        state = _without_removed(read_state(comparison.path), store)
        recipe, state = _probed(comparison, recipe, state, store)
        _check_done(state, recipe, store)
        state = run_launches(comparison, state, recipe, store, on_progress)
        if recipe.launches.half_width is not None and state.blocks == recipe.launches.first:
            state = _with_second_stage(comparison, state, recipe, store, on_stage)
            state = run_launches(comparison, state, recipe, store, on_progress)
        analysed = _analyze(comparison, state, recipe, store, on_stage)
        planned = analysed.question is None or analysed.question.plans
        if planned and all(map(has_lengths, recipe.arms.values())):
            on_stage("solving exact against greedy")
            firsts = {arm.label: arm.runs[0].run for arm in analysed.arms}
            plan_offline(comparison, firsts, analysed.runs[0].workers, store, comparison.record().argv)
        on_stage("writing the report")
        source = read_report_input(store, comparison)
        reports = [write_report(source, form=form) for form in FORMATS]
    return Outcome(comparison, recipe.launches, state, analysed, reports, source.figures)


def _probed(comparison: Run, recipe: Recipe, state: CompareState, store: RunStore) -> tuple[Recipe, CompareState]:
    """The recipe with a probe for every arm that wants one, and the state that names them.

    An arm that asks for none, or names one, stays as it is, and so does one that `train` would run without; arms that
    a probe means the same for share it. The state is written after every probe, so that resuming keeps it. Every launch
    is then planned for once more, with the capacities found.
    """
    recipe = _using(recipe, state.probes)
    wanting = {name: config for name, config in recipe.arms.items() if wants_probe(config)}
    with_splits = any(config.schedule.micro_batches != 1 for config in wanting.values())
    groups: dict[tuple[int, str, float, str], list[str]] = {}
    for name, config in wanting.items():
        groups.setdefault(probe_identity(config, store, with_splits=with_splits), []).append(name)
    for first, *others in groups.values():
        probe = make_probe(recipe.arms[first], store)
        state = replace(state, probes={**state.probes, **dict.fromkeys((first, *others), probe)})
        state.write(comparison.path)
    recipe = _using(recipe, state.probes)
    if groups:
        resolved_arms(recipe, store)
    return recipe, state


def _using(recipe: Recipe, probes: Mapping[str, str]) -> Recipe:
    shared = {name: changed(recipe.arms[name], {"probe.run": probe}) for name, probe in probes.items()}
    return replace(recipe, arms={**recipe.arms, **shared})


def _check_done(state: CompareState, recipe: Recipe, store: RunStore) -> None:
    """Refuse to go on where a launch that is done is of another configuration than the arm's next would be.

    Raises:
        NotComparable: there is one.
    """
    done = [(arm, Run(store.root / run)) for arm, runs in state.arms.items() for run in runs]
    if not (done and state.missing):
        return
    arms = resolved_arms(recipe, store)
    for arm, run in done:
        if unlike := launch_differences([run.config(), arms[arm]]):
            raise NotComparable(
                f"{run.label}, a launch of arm {arm}, is of another configuration than one made now: they differ in "
                f"{describe(unlike)}",
                "Go on where it was begun.",
            )


def _with_second_stage(
    comparison: Run, state: CompareState, recipe: Recipe, store: RunStore, on_stage: OnStage
) -> CompareState:
    """The state with the launches that the half-width needs, by the spread of those that are done."""
    on_stage("judging the first stage")
    stage = plan_second_stage(state, recipe, store)
    _log.info("%s", stage.text)
    if stage.warning is not None:
        _log.warning("%s", stage.warning)
        comparison.update(warnings=[*comparison.record().warnings, stage.warning])
    state = state.extended(stage.launches, {name: config.train.seed for name, config in recipe.arms.items()})
    state.write(comparison.path)
    return state


def _without_removed(state: CompareState, store: RunStore) -> CompareState:
    """Launches whose run folder was removed since are missing again."""
    gone = [
        index
        for index, launch in enumerate(state.launches)
        if launch.run is not None and not (store.root / launch.run / "run.json").is_file()
    ]
    return state.with_runs(dict.fromkeys(gone), done=False)


def _analyze(comparison: Run, state: CompareState, recipe: Recipe, store: RunStore, on_stage: OnStage) -> Analysed:
    arms = completed_runs(state, recipe, store)
    settings = recipe.arms[recipe.baseline].analysis
    # Launches that went on apart spread otherwise than a first stage in turns: their interval keeps none.
    alike = len({len(members) > 1 for members in state.launch_members}) == 1
    first = recipe.launches.first if recipe.launches.half_width is not None and alike else None
    chosen = Selection(arms=arms, into=comparison, question=recipe.question, first=first)
    return analyze_runs(chosen, store, settings, on_progress=on_stage)


def resume_command(comparison: Run) -> str:
    """What goes on with a comparison."""
    return f"dynbench compare --resume {shlex.quote(comparison.label)}{results_option(comparison.path.parent)}"


@contextmanager
def resumable(comparison: Run) -> Iterator[None]:
    """As `recorded`; what ends it says how to go on."""
    try:
        with recorded(comparison):
            yield
    except DynbenchError as error:
        error.hint = f"{error.hint.partition(_GO_ON)[0].strip()} {_next_step(comparison, error)}".strip()
        raise


def _next_step(comparison: Run, error: DynbenchError) -> str:
    if isinstance(error, NotComparable):
        return f"Going on repeats no launch that is done: {_ANEW}"
    settings = isinstance(error, UsageError | NothingFits) and not isinstance(error, StorageError)
    anew = f"; with other settings, {_ANEW}" if settings else ""
    return f"{_GO_ON} {resume_command(comparison)}{anew}"
