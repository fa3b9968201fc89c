"""What a turn's time holds: an arm's own work to its end, and nothing of the meeting of ranks or of other arms."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from unittest.mock import patch

import torch

from dynbench.config.schema import Train
from dynbench.engine.rank.rank_process import StopFlag
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.turns import Moment, Switch, play
from dynbench.engine.turn_order import Turns

PAUSE_S = 0.2
HALF_MS = 1000 * PAUSE_S / 2
SHARED = threading.Lock()
"""What two arms of a process compete for, as for its cores."""


class Arm:
    """An arm that is timed as the real ones are; it may leave work behind, which holds what all need.

    Args:
        leaves: its steps start work that goes on.
        drains: it waits for that work before its turn ends.
    """

    def __init__(self, leaves: bool = False, drains: bool = True) -> None:
        self.timer = StepTimer(torch.device("cpu"))
        self.leaves, self.drains = leaves, drains
        self.times_ms: list[float] = []

    def restart(self) -> None:
        self.timer.restart()

    def step(self, moment: Moment) -> None:
        with SHARED:
            pass
        if self.leaves:
            started = threading.Event()

            def work() -> None:
                with SHARED:
                    started.set()
                    time.sleep(PAUSE_S)

            prefetch = threading.Thread(target=work)
            prefetch.start()
            started.wait()
            if moment.leaving and self.drains:
                prefetch.join()
        self.times_ms.append(self.timer.end_step()[1])

    def due(self, step: int) -> bool:
        return False

    def enter(self) -> None:
        pass

    leave = enter


def run(arms: list[Arm], make_switch: Callable[..., Switch] = Switch, meet: Callable[[], None] = lambda: None) -> None:
    stop = StopFlag.__new__(StopFlag)
    stop.signum, stop.deferred = None, False
    turns, train = Turns(("a", "b")), Train(steps=2, warmup_steps=0)
    switch = make_switch(arms, torch.device("cpu"), lambda arm: None, meet)
    with patch.object(gc, "collect"):  # of a whole test session
        play(train, arms, turns, stop, switch)


def wait() -> None:
    """Another rank comes later."""
    time.sleep(PAUSE_S)


def test_meeting_the_other_ranks_is_in_no_clock() -> None:
    arms = [Arm(), Arm()]
    run(arms, meet=wait)
    assert max(arms[0].times_ms + arms[1].times_ms) < HALF_MS


def test_a_barrier_inside_a_clock_would_be_seen() -> None:
    """Planted: the next arm's clock starts, and then the ranks meet."""

    class Late(Switch):
        def __call__(self, arm: int) -> None:
            super().__call__(arm)
            self.players[arm].restart = lambda: None  # type: ignore[method-assign]

    arms = [Arm(), Arm()]
    run(arms, Late, meet=wait)
    assert min(arms[0].times_ms[1:] + arms[1].times_ms[1:]) > HALF_MS


def test_what_an_arm_has_started_ends_in_its_own_time() -> None:
    arms = [Arm(leaves=True), Arm()]
    run(arms)
    assert min(arms[0].times_ms) > HALF_MS and max(arms[1].times_ms) < HALF_MS


def test_work_left_behind_would_be_seen_in_the_next_arm() -> None:
    """Planted: an arm that does not wait for what it has started."""
    arms = [Arm(leaves=True, drains=False), Arm()]
    run(arms)
    assert max(arms[1].times_ms) > HALF_MS
