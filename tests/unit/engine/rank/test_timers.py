"""Intervals go to their phase, and a step lasts from the end of the one before."""

from __future__ import annotations

import time

import pytest
import torch

from dynbench.clock import HostClock
from dynbench.engine.rank.timers import PHASES, StepTimer


def test_phases_are_summed_and_cleared() -> None:
    timer = StepTimer(torch.device("cpu"))
    for _ in range(2):
        with timer.device("forward"):
            time.sleep(0.002)
    with timer.host("plan"):
        pass
    phases, step_ms = timer.end_step()
    assert set(phases) == set(PHASES)
    assert phases["forward"] >= 4
    assert phases["sync"] == 0
    assert sum(phases.values()) <= step_ms
    assert timer.end_step()[0]["forward"] == 0


def test_what_lies_before_restart_is_left_out() -> None:
    timer = StepTimer(torch.device("cpu"))
    time.sleep(0.02)
    timer.restart()
    assert timer.end_step()[1] < 15


def test_ready_splits_backward_from_sync() -> None:
    timer = StepTimer(torch.device("cpu"))
    start = timer.clock.mark()
    time.sleep(0.002)
    timer.note_ready()
    time.sleep(0.004)
    end = timer.clock.mark()
    ready = timer.take_ready(default=end)
    timer.add("backward", start, ready)
    timer.add("sync", ready, end)
    phases, _ = timer.end_step()
    assert phases["backward"] >= 2 and phases["sync"] >= 4
    assert phases["backward"] + phases["sync"] == pytest.approx(timer.clock.elapsed_ms(start, end))
    assert timer.take_ready(default="none") == "none"


def test_compute_so_far_counts_finished_and_running_passes() -> None:
    timer = StepTimer(torch.device("cpu"))
    with timer.device("forward"):
        time.sleep(0.002)
    with timer.device("sync"):
        time.sleep(0.002)
    running = timer.clock.mark()
    time.sleep(0.002)
    assert 4 <= timer.compute_ms(running) < 6 + 20


def test_compute_so_far_does_not_wait_for_collectives() -> None:
    waited = []

    class Clock(HostClock):
        def wait(self, mark: object) -> None:
            waited.append(mark)

        def synchronise(self) -> None:
            raise AssertionError("waits for every stream, those of collectives too")

    timer = StepTimer(torch.device("cpu"))
    timer.clock = Clock()
    timer.compute_ms(timer.clock.mark())
    assert len(waited) == 1
