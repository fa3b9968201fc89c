"""The launches of a comparison, one after the other; what is done is on disk before the next begins.

Where a half-width is to be reached, the spread of the first stage says how many launches follow it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dynbench.analysis.arms import all_differences, log_ratios, named_arms, pair_launches
from dynbench.analysis.merge import merge_run
from dynbench.analysis.questions import find_question
from dynbench.analysis.stats import Plan, plan_launches
from dynbench.config.recipes import MOST_LAUNCHES, Recipe
from dynbench.config.schema import changed
from dynbench.engine.launching.progress import Progress
from dynbench.engine.plan_check import total_steps
from dynbench.engine.turn_order import Turns
from dynbench.errors import DynbenchError, NothingFits, ReplicasTooLarge, WorkerFailed
from dynbench.experiment.launch_plan import CompareState, LaunchState, read_state
from dynbench.experiment.training import run_arms, turn_steps, with_null_arms
from dynbench.runs.run import Run, duration_s
from dynbench.runs.store import RunStore
from dynbench.units import format_ms

_log = logging.getLogger(__name__)
Epochs = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class CompareProgress:
    """How far a comparison is.

    Attributes:
        done: launches finished, those before a resume included.
        total: launches planned.
        arms: of the current one.
        steps_done, total_steps: of the current launch, warm-up included.
        eta_s: seconds until the last launch ends, None before anything was learned.
        epochs: of each arm of the current launch, what came of the epochs that have ended, a line each.
    """

    done: int
    total: int
    arms: Sequence[LaunchState]
    steps_done: int
    total_steps: int
    eta_s: float | None
    epochs: Epochs = ()


OnProgress = Callable[[CompareProgress], None]


@dataclass
class Clock:
    """Estimates what is left from the launches finished so far."""

    started_s: float = field(default_factory=time.monotonic)
    finished: int = 0

    def eta_s(self, left: int, fraction: float) -> float | None:
        """Seconds until `left` launches are done, the first to this fraction; None before its first step."""
        done = self.finished + fraction
        return (time.monotonic() - self.started_s) * (left - fraction) / done if done else None


def run_launches(
    comparison: Run,
    state: CompareState,
    recipe: Recipe,
    store: RunStore,
    on_progress: OnProgress = lambda _: None,
) -> CompareState:
    """Run every launch that is missing.

    Args:
        comparison: its folder.
        state: what is done, and what is planned.
        recipe: the arms; where their models do not fit into one process and `launches.mode` is auto, fewer share one.
        store: registry of the runs.
        on_progress: called with how far the launches are.

    Raises:
        WorkerFailed, NothingFits, Interrupted, UsageError: a launch ended so; the state on disk names its runs, and
            where one arm of several ended it and `launches.mode` is auto, plans that arm apart.
    """
    seeds = {name: config.train.seed for name, config in recipe.arms.items()}
    clock = Clock()
    while missing := state.missing:
        members, made = missing[0], list[Run]()
        try:
            state = _train(comparison, state, members, recipe, store, clock, made, on_progress)
        except ReplicasTooLarge as error:
            if recipe.launches.mode != "auto" or len(members) == 1:
                raise
            for run in made:
                if run.record_file.exists():  # of several nodes, one keeps the folders that they share
                    store.remove(run)
            state = state.regrouped(state.grouping.smaller(state.baseline, error.message), seeds)
            _log.warning("%s; fewer arms share a launch from here on", error.message)
            clock = Clock()
        except DynbenchError as error:
            position = _failed_arm(error, recipe) if len(members) > 1 else None
            if position is not None:
                arm = state.launches[members[position]].arm
                reason = f"arm {arm} ended a launch that it shared: {error.message}"
                written = read_state(comparison.path)
                written.regrouped(written.grouping.without(arm, written.baseline, reason), seeds).write(comparison.path)
            raise
        else:
            clock.finished += 1
        state.write(comparison.path)
    return state


def _failed_arm(error: DynbenchError, recipe: Recipe) -> int | None:
    """The position of the arm that is to go on apart: whose memory ran out in its turn, or a rank died.

    None where the arms are to stay in one launch, and on several nodes, where nobody knows for all whose turn it was.
    """
    failed = isinstance(error, NothingFits) or (isinstance(error, WorkerFailed) and error.rank is not None)
    may_part = recipe.launches.mode == "auto" and recipe.arms[recipe.baseline].launch.nnodes == 1
    return error.arm if failed and may_part else None


def _train(
    comparison: Run,
    state: CompareState,
    members: Sequence[int],
    recipe: Recipe,
    store: RunStore,
    clock: Clock,
    made: list[Run],
    on_progress: OnProgress,
) -> CompareState:
    """Train one launch, of one arm or several, and return the state after it; `made` gets its run folders."""
    launched = [state.launches[index] for index in members]
    configs = [changed(recipe.arms[one.arm], {"train.seed": one.seed}) for one in launched]
    names = [_run_name(state, index, comparison) for index in members]
    argv = comparison.record().argv
    arms = with_null_arms(
        (one.arm, config, {"name": name, "replace": True, "argv": argv})
        for one, config, name in zip(launched, configs, names, strict=True)
    )
    first = launched[0]
    turns = Turns(
        tuple(arm.name for arm in arms), turn_steps(recipe.launches, configs), first.seed - first.block, first.block
    )

    def with_runs(runs: Sequence[Run], *, done: bool) -> CompareState:
        ids = [run.id for arm, run in zip(arms, runs, strict=True) if not arm.is_null]
        return state.with_runs(dict(zip(members, ids, strict=True)), done=done)

    def on_made(runs: Sequence[Run]) -> None:
        made.extend(runs)
        with_runs(runs, done=False).write(comparison.path)

    def report(steps_done: int, steps: int, epochs: Epochs = ()) -> None:
        total, left = len(state.launch_members), len(state.missing)
        eta_s = clock.eta_s(left, steps_done / steps)
        on_progress(CompareProgress(total - left, total, launched, steps_done, steps, eta_s, epochs))

    def on_steps(progress: Progress) -> None:
        epochs = [own for arm, own in zip(arms, progress.epochs, strict=False) if not arm.is_null]
        report(progress.steps_done, progress.total_steps, epochs)

    report(0, sum(total_steps(arm.config) for arm in arms))
    try:
        results = run_arms(arms, store, turns=turns if len(arms) > 1 else None, on_progress=on_steps, on_made=on_made)
    except DynbenchError as error:
        if error.arm is not None:
            error.arm = arms[error.arm].member
        raise
    return with_runs([result.run for result in results], done=True)


def _run_name(state: CompareState, index: int, comparison: Run) -> str:
    """Arm and block; where an arm has several runs in a block, a letter tells them apart."""
    one = state.launches[index]
    like = [place for place, it in enumerate(state.launches) if (it.arm, it.block) == (one.arm, one.block)]
    letter = "abcdefghijklmnopqrstuvwxyz"[like.index(index) % 26] if len(like) > 1 else ""
    return f"{one.arm}-{one.block + 1}{letter}-{comparison.id.rpartition('-')[2]}"


def completed_runs(state: CompareState, recipe: Recipe, store: RunStore) -> dict[str, list[Run]]:
    """The completed runs of every arm by block, the baseline first."""
    names = sorted(recipe.arms, key=lambda name: name != recipe.baseline)
    return {name: list(map(store.resolve, state.arms[name])) for name in names}


@dataclass(frozen=True)
class SecondStage:
    """What follows the first stage.

    Attributes:
        launches: per arm, the first stage among them.
        text: what is shown of it.
        warning: what a limit costs; None where none bites.
    """

    launches: int
    text: str
    warning: str | None


def plan_second_stage(state: CompareState, recipe: Recipe, store: RunStore) -> SecondStage:
    """The launches that the widest interval against the baseline needs, by the spread of the first stage.

    Args:
        state: with the first stage done.
        recipe: what is wanted.
        store: registry of the runs.

    Raises:
        RecordError: a run that cannot be read.
    """
    wanted = recipe.launches
    assert wanted.half_width is not None, "checked by the caller"
    settings = recipe.arms[recipe.baseline].analysis
    runs = completed_runs(state, recipe, store)
    baseline, *candidates = named_arms({name: list(map(merge_run, of_arm)) for name, of_arm in runs.items()})
    differences = [all_differences(baseline.runs[0], arm.runs[0]) for arm in candidates]
    unit = find_question(differences, recipe.question).unit
    by_seed = []
    for arm in candidates:
        pairs = pair_launches(baseline, arm).pairs
        seeds = [base.facts.seed for base, _ in pairs]
        by_seed.append(dict(zip(seeds, log_ratios(pairs, unit), strict=True)))
    common = sorted(set(by_seed[0]).intersection(*by_seed))[: wanted.first]
    fewest = len(common)
    if fewest < 2:
        text = (
            f"the first stage left {fewest} paired launches, 2 are the least: no number of launches follows from them"
        )
        return SecondStage(state.blocks, text, text)
    block_s = sum(_seconds(state, store, members) for members in state.launch_members) / state.blocks
    plan = plan_launches(
        [[logs[seed] for seed in common] for logs in by_seed],
        wanted.half_width,
        settings.confidence,
        most_launches=wanted.max_launches or MOST_LAUNCHES,
        most_s=wanted.max_time_s,
        launch_s=block_s,
    )
    launches = plan.launches
    if state.mode == "apart" and launches % 2:
        in_number = launches < (wanted.max_launches or MOST_LAUNCHES)
        in_time = wanted.max_time_s is None or (launches + 1) * block_s <= wanted.max_time_s
        launches += 1 if in_number and in_time else -1
    return SecondStage(
        launches, _stage_text(plan, launches, block_s, wanted.half_width), _warning(plan, launches, wanted.half_width)
    )


def _seconds(state: CompareState, store: RunStore, members: list[int]) -> float:
    """How long a launch took; its arms ran at the same time."""
    runs = [state.launches[index].run for index in members]
    return max(duration_s(store.resolve(run).record()) or 0.0 for run in runs if run is not None)


def _stage_text(plan: Plan, launches: int, block_s: float, half_width: float) -> str:
    more = launches - plan.first
    if more == 0:
        return f"the first {plan.first} launches are enough for intervals of ±{half_width:.1%}"
    left = format_ms(1000 * math.ceil(more * block_s))
    return f"±{half_width:.1%} needs {plan.needed} launches: {more} more, about {left}"


def _warning(plan: Plan, launches: int, half_width: float) -> str | None:
    if launches >= plan.needed:
        return None
    reached = math.expm1(math.log1p(plan.half_width) * math.sqrt(plan.launches / launches))
    return (
        f"launches.half_width: ±{half_width:.1%} needs {plan.needed} launches, the limit allows {launches}, which "
        f"give about ±{reached:.1%}; raise launches.max_launches, to {MOST_LAUNCHES} at most, or max_time_s "
        "(--max-launches, --max-time)"
    )
