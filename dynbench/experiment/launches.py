"""The launches of a comparison, one after the other; what is done is on disk before the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dynbench.config.change import changed
from dynbench.config.schema import Config
from dynbench.errors import DynbenchError
from dynbench.experiment.state import CompareState, LaunchState
from dynbench.experiment.training import run_training
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


@dataclass(frozen=True, slots=True)
class CompareProgress:
    """How far a comparison is.

    Attributes:
        done: launches finished, those before a resume included.
        total: launches planned.
        launch: the current one.
        steps_done, total_steps: of the current launch, warm-up included.
        eta_s: seconds until the last launch ends, None before anything was learned.
    """

    done: int
    total: int
    launch: LaunchState
    steps_done: int
    total_steps: int
    eta_s: float | None


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
    arms: Mapping[str, Config],
    store: RunStore,
    on_progress: OnProgress | None = None,
) -> CompareState:
    """Run every launch that is missing.

    Raises:
        WorkerFailed, NothingFits, Interrupted, UsageError: a launch ended so; the state on disk names its run.
    """
    clock = Clock(len(state.missing))
    for index in state.missing:
        state = _launch(comparison, state, index, arms, store, _reporter(state, index, clock, on_progress))
        clock.finished += 1
    return state


def _launch(
    comparison: Run,
    state: CompareState,
    index: int,
    arms: Mapping[str, Config],
    store: RunStore,
    on_step: Callable[[int, int], None],
) -> CompareState:
    launch = state.launches[index]
    config = changed(arms[launch.arm], {"train.seed": launch.seed})
    name = f"{launch.arm}-{launch.block + 1}-{comparison.id.rpartition('-')[2]}"
    on_step(0, config.train.warmup_steps + config.train.steps)
    try:
        result = run_training(
            config,
            store,
            name=name,
            replace=True,
            argv=comparison.record().argv,
            warn_unread=False,
            on_progress=lambda progress: on_step(progress.steps_done, progress.total_steps),
        )
    except DynbenchError as error:
        if error.run_path is not None:
            state.with_run(index, error.run_path.name, done=False).write(comparison.path)
        raise
    assert result is not None, "only a rank started from outside has no result"
    state = state.with_run(index, result.run.id, done=True)
    state.write(comparison.path)
    return state


def _reporter(
    state: CompareState, index: int, clock: Clock, on_progress: OnProgress | None
) -> Callable[[int, int], None]:
    def on_step(steps_done: int, total_steps: int) -> None:
        if on_progress is not None:
            done = len(state.launches) - len(state.missing)
            eta_s = clock.eta_s(steps_done / total_steps)
            on_progress(
                CompareProgress(done, len(state.launches), state.launches[index], steps_done, total_steps, eta_s)
            )

    return on_step
