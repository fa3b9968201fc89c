"""The launches of a comparison, one after the other; what is done is on disk before the next begins.

Where a half-width is to be reached, the spread of the first stage says how many launches follow it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dynbench.analysis.arms import all_differences, log_ratios, named_arms, pair_launches
from dynbench.analysis.merge import merge_run
from dynbench.analysis.questions import find_question
from dynbench.analysis.stats import Plan, plan_launches
from dynbench.config.digest import changed
from dynbench.config.launches import MOST_LAUNCHES
from dynbench.config.recipes import Recipe
from dynbench.engine.launching.progress import Progress
from dynbench.engine.plan_check import total_steps
from dynbench.engine.turn_order import Turns
from dynbench.errors import DynbenchError, NothingFits, ReplicasTooLarge, WorkerFailed
from dynbench.experiment.launch_plan import CompareState, LaunchState, read_state
from dynbench.experiment.training import run_arms, turn_steps, with_silent
from dynbench.runs.run import Run, duration_s
from dynbench.runs.store import Naming, RunStore
from dynbench.units import format_ms

_log = logging.getLogger(__name__)
Item = TypeVar("Item")

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
    """Estimates what is left from the launches finished so far.

    Args:
        launches_left: launches still to do.
    """

    launches_left: int
    started_s: float = field(default_factory=time.monotonic)
    finished: int = 0

    def eta_s(self, fraction: float) -> float | None:
        """Seconds left when `fraction` of the current launch is done; None before the first step."""
        done = self.finished + fraction
        if done == 0:
            return None
        return (time.monotonic() - self.started_s) * (self.launches_left - done) / done


def run_launches(
    comparison: Run,
    state: CompareState,
    recipe: Recipe,
    store: RunStore,
    on_progress: OnProgress | None = None,
) -> CompareState:
    """Run every launch that is missing.

    Args:
        comparison: its folder.
        state: what is done, and what is planned.
        recipe: the arms; where their models do not fit into one process and `launches.mode` is auto, fewer share one.
        store: registry of the runs.
        on_progress: told how far the launches are.

    Raises:
        WorkerFailed, NothingFits, Interrupted, UsageError: a launch ended so; the state on disk names its runs, and
            where one arm of several ended it and `launches.mode` is auto, plans that arm apart.
    """
    clock = Clock(len(state.missing))
    seeds = {name: config.train.seed for name, config in recipe.arms.items()}
    while state.missing:
        members = state.missing[0]
        launch = _Launch(comparison, state, members, recipe, store, clock, on_progress)
        try:
            state = launch.run()
        except ReplicasTooLarge as error:
            if recipe.launches.mode != "auto" or len(members) == 1:
                raise
            for made in launch.made:
                if made.record_file.exists():  # of several nodes, one keeps the folders that they share
                    store.remove(made)
            state = state.regrouped(state.grouping.smaller(state.baseline, error.message), seeds)
            _log.warning("%s; fewer arms share a launch from here on", error.message)
            clock = Clock(len(state.missing))
        except DynbenchError as error:
            position = _whose_doing(error, recipe) if len(members) > 1 else None
            if position is not None:
                arm = state.launches[members[position]].arm
                reason = f"arm {arm} ended a launch that it shared: {error.message}"
                kept = read_state(comparison.path)
                kept.regrouped(kept.grouping.without(arm, kept.baseline, reason), seeds).write(comparison.path)
            raise
        else:
            clock.finished += 1
        state.write(comparison.path)
    return state


def _whose_doing(error: DynbenchError, recipe: Recipe) -> int | None:
    """The position of the arm that is to go on apart: whose memory ran out in its turn, or a rank died.

    None where the arms are to stay together, and on several nodes, where nobody knows for all whose turn it was.
    """
    failed = isinstance(error, NothingFits) or (isinstance(error, WorkerFailed) and error.rank is not None)
    may_part = recipe.launches.mode == "auto" and recipe.arms[recipe.baseline].launch.nnodes == 1
    return error.arm if failed and may_part else None


@dataclass
class _Launch:
    """One launch, of one arm or several."""

    comparison: Run
    state: CompareState
    members: Sequence[int]
    recipe: Recipe
    store: RunStore
    clock: Clock
    on_progress: OnProgress | None
    made: Sequence[Run] = ()

    def run(self) -> CompareState:
        """Train, and return the state after it."""
        states = [self.state.launches[index] for index in self.members]
        configs = [changed(self.recipe.arms[one.arm], {"train.seed": one.seed}) for one in states]
        arms = with_silent(
            [
                (one.arm, config, self._naming(index))
                for one, config, index in zip(states, configs, self.members, strict=True)
            ]
        )
        self._tell(0, sum(total_steps(one.config) for one in arms))
        first = states[0]
        block = turn_steps(self.recipe.launches, configs)
        turns = Turns(tuple(one.arm for one in arms), block, first.seed - first.block, first.block)

        def own(of_each: Sequence[Item]) -> list[Item]:
            return [item for one, item in zip(arms, of_each, strict=True) if not one.silent]

        def keep(runs: Sequence[Run]) -> None:
            self.made = runs
            self._with(own(runs), done=False).write(self.comparison.path)

        def tell(progress: Progress) -> None:
            self._tell(progress.steps_done, progress.total_steps, own(progress.epochs) if progress.epochs else ())

        try:
            results = run_arms(
                [(one.config, one.naming) for one in arms],
                self.store,
                turns=turns if len(arms) > 1 else None,
                on_progress=tell,
                on_made=keep,
            )
        except DynbenchError as error:
            if error.arm is not None:
                error.arm = arms[error.arm].member
            raise
        return self._with([result.run for result in own(results)], done=True)

    def _tell(self, steps_done: int, steps: int, epochs: Epochs = ()) -> None:
        if self.on_progress is not None:
            total, left = len(self.state.together), len(self.state.missing)
            arms = [self.state.launches[index] for index in self.members]
            eta_s = self.clock.eta_s(steps_done / steps)
            self.on_progress(CompareProgress(total - left, total, arms, steps_done, steps, eta_s, tuple(epochs)))

    def _with(self, runs: Sequence[Run], *, done: bool) -> CompareState:
        ids = {index: run.id for index, run in zip(self.members, runs, strict=True)}
        return self.state.with_runs(ids, done=done)

    def _naming(self, index: int) -> Naming:
        """Arm and block; where an arm has several runs in a block, a letter tells them apart."""
        one = self.state.launches[index]
        like = [place for place, it in enumerate(self.state.launches) if (it.arm, it.block) == (one.arm, one.block)]
        letter = "abcdefghijklmnopqrstuvwxyz"[like.index(index) % 26] if len(like) > 1 else ""
        name = f"{one.arm}-{one.block + 1}{letter}-{self.comparison.id.rpartition('-')[2]}"
        return {"name": name, "replace": True, "argv": self.comparison.record().argv}


def completed_runs(state: CompareState, recipe: Recipe, store: RunStore) -> dict[str, list[Run]]:
    """The completed runs of every arm by block, the baseline first."""
    names = sorted(recipe.arms, key=lambda name: name != recipe.baseline)
    return {name: list(map(store.resolve, state.arms[name])) for name in names}


@dataclass(frozen=True)
class SecondStage:
    """What follows the first stage.

    Attributes:
        launches: per arm, the first stage among them.
        said: what is shown of it.
        warning: what a limit costs; None where none bites.
    """

    launches: int
    said: str
    warning: str | None


def plan_second_stage(state: CompareState, recipe: Recipe, store: RunStore) -> SecondStage:
    """The launches that the widest interval against the baseline needs, by the spread of the first stage.

    Args:
        state: with the first stage done.
        recipe: what is asked for.
        store: registry of the runs.

    Raises:
        RecordError: a run that cannot be read.
    """
    asked = recipe.launches
    assert asked.half_width is not None, "it is asked for"
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
    common = sorted(set(by_seed[0]).intersection(*by_seed))[: asked.first]
    fewest = len(common)
    if fewest < 2:
        text = (
            f"the first stage left {fewest} paired launches, 2 are the least: no number of launches follows from them"
        )
        return SecondStage(state.blocks, text, text)
    block_s = sum(_seconds(state, store, members) for members in state.together) / state.blocks
    plan = plan_launches(
        [[logs[seed] for seed in common] for logs in by_seed],
        asked.half_width,
        settings.confidence,
        most_launches=asked.max_launches or MOST_LAUNCHES,
        most_s=asked.max_time_s,
        launch_s=block_s,
    )
    launches = plan.launches
    if state.mode == "apart" and launches % 2:
        in_number = launches < (asked.max_launches or MOST_LAUNCHES)
        in_time = asked.max_time_s is None or (launches + 1) * block_s <= asked.max_time_s
        launches += 1 if in_number and in_time else -1
    return SecondStage(
        launches, _said(plan, launches, block_s, asked.half_width), _warning(plan, launches, asked.half_width)
    )


def _seconds(state: CompareState, store: RunStore, members: list[int]) -> float:
    """How long a launch took; its arms ran at the same time."""
    runs = [state.launches[index].run for index in members]
    return max(duration_s(store.resolve(run).record()) or 0.0 for run in runs if run is not None)


def _said(plan: Plan, launches: int, block_s: float, half_width: float) -> str:
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
