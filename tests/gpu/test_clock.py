"""Device time is that of the work itself, and asking for it waits for nothing else."""

from __future__ import annotations

import time

import pytest
import torch

from dynbench.clock import NS_PER_MS, Clock, CudaClock
from dynbench.engine.rank.timers import StepTimer

pytestmark = pytest.mark.gpu

CYCLES = 200_000_000
"""Of a kernel that only waits: about a tenth of a second."""


def test_events_and_the_host_agree_on_a_kernel(device: torch.device) -> None:
    host, gpu = Clock(), CudaClock(device)
    torch.cuda._sleep(1)
    gpu.synchronise()
    before, start = host.mark(), gpu.mark()
    torch.cuda._sleep(CYCLES)
    end = gpu.mark()
    gpu.synchronise()
    seen = host.elapsed_ms(before, host.mark())
    assert 0.9 * seen < gpu.elapsed_ms(start, end) <= 1.01 * seen


def test_a_mark_waits_for_nothing_and_waiting_for_it_leaves_other_streams_alone(device: torch.device) -> None:
    clock, other = CudaClock(device), torch.cuda.Stream(device)
    with torch.cuda.stream(other):
        torch.cuda._sleep(5 * CYCLES)
    torch.cuda._sleep(CYCLES)
    mark = clock.mark()
    assert not mark.query()
    clock.wait(mark)
    assert mark.query() and not other.query()
    clock.synchronise()
    assert other.query()


def test_phases_have_their_kernels_time_although_the_host_runs_ahead(device: torch.device) -> None:
    timer = StepTimer(device)
    with timer.device("forward"):
        torch.cuda._sleep(CYCLES)
    with timer.device("backward"):
        torch.cuda._sleep(2 * CYCLES)
    with timer.host("plan"):
        time.sleep(0.01)
    phases, step_ms = timer.end_step()
    assert phases["backward"] == pytest.approx(2 * phases["forward"], rel=0.05)
    assert phases["forward"] + phases["backward"] <= step_ms
    assert 10 <= phases["plan"] < phases["forward"]


def test_ready_is_a_moment_on_the_device(device: torch.device) -> None:
    timer, before = StepTimer(device), time.perf_counter_ns()
    with timer.backward():
        torch.cuda._sleep(CYCLES)
        timer.note_ready()
        torch.cuda._sleep(2 * CYCLES)
    phases, _ = timer.end_step()
    assert phases["sync"] == pytest.approx(2 * phases["backward"], rel=0.05)
    ((start, end),) = timer.synchronised.spans_ns
    assert end - start == pytest.approx(phases["sync"] * NS_PER_MS, rel=0.01)
    assert before < start < end < time.perf_counter_ns()
