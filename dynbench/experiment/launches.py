"""The launches of a comparison, one after the other; what is done is on disk before the next begins."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dynbench.config.digest import changed
from dynbench.config.recipes import Recipe
from dynbench.engine.launching.progress import Progress
from dynbench.engine.turn_order import Turns
from dynbench.errors import DynbenchError, NothingFits, ReplicasTooLarge, WorkerFailed
from dynbench.experiment.state import CompareState, LaunchState, read_state
from dynbench.experiment.training import run_arms, turn_steps, with_silent
from dynbench.runs.run import Run
from dynbench.runs.store import Naming, RunStore

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
OnStep = Callable[[int, int, Epochs], None]
"""Steps done, of how many, and `CompareProgress.epochs`."""


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
        launch = _Launch(comparison, state, members, recipe, store)
        try:
            state = launch.run(_reporter(state, members, clock, on_progress))
        except ReplicasTooLarge as error:
            if recipe.launches.mode != "auto" or len(members) == 1:
                raise
            for made in launch.made:
                if made.record_file.exists():  # of several nodes, one keeps the folders that they share
                    store.remove(made)
            state = state.meeting_as(state.meeting.smaller(state.baseline, error.message), seeds)
            _log.warning("%s; fewer arms share a launch from here on", error.message)
            clock = Clock(len(state.missing))
        except DynbenchError as error:
            position = _whose_doing(error, recipe) if len(members) > 1 else None
            if position is not None:
                arm = state.launches[members[position]].arm
                reason = f"arm {arm} ended a launch that it shared: {error.message}"
                kept = read_state(comparison.path)
                kept.meeting_as(kept.meeting.without(arm, kept.baseline, reason), seeds).write(comparison.path)
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
    made: Sequence[Run] = ()

    def run(self, on_step: OnStep) -> CompareState:
        """Train, and return the state after it."""
        states = [self.state.launches[index] for index in self.members]
        configs = [changed(self.recipe.arms[one.arm], {"train.seed": one.seed}) for one in states]
        arms = with_silent(
            [
                (one.arm, config, self._naming(index))
                for one, config, index in zip(states, configs, self.members, strict=True)
            ]
        )
        on_step(0, sum(one.config.train.warmup_steps + one.config.train.steps for one in arms), ())
        first = states[0]
        block = turn_steps(self.recipe.launches, configs)
        turns = Turns(tuple(one.arm for one in arms), block, first.seed - first.block, first.block)

        def own(of_each: Sequence[Item]) -> list[Item]:
            return [item for one, item in zip(arms, of_each, strict=True) if not one.silent]

        def keep(runs: Sequence[Run]) -> None:
            self.made = runs
            self._with(own(runs), done=False).write(self.comparison.path)

        def tell(progress: Progress) -> None:
            on_step(progress.steps_done, progress.total_steps, tuple(own(progress.epochs) if progress.epochs else ()))

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


def _reporter(state: CompareState, members: Sequence[int], clock: Clock, on_progress: OnProgress | None) -> OnStep:
    launches = [state.launches[index] for index in members]

    def on_step(steps_done: int, total_steps: int, epochs: Epochs) -> None:
        if on_progress is not None:
            total, left = len(state.together), len(state.missing)
            eta_s = clock.eta_s(steps_done / total_steps)
            on_progress(CompareProgress(total - left, total, launches, steps_done, total_steps, eta_s, epochs))

    return on_step
