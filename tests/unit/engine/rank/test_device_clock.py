"""A GPU's clock without a GPU: its events are made up."""

from __future__ import annotations

import pytest
import torch

from dynbench.clock import CudaClock, HostClock
from dynbench.compress.compressing import Tally
from dynbench.engine.failure import has_waited
from dynbench.engine.rank.timers import StepTimer


class Event(torch.cuda.Event):
    """An event that happens once it was asked for so often."""

    def __new__(cls, after: float) -> Event:
        return object.__new__(cls)

    def __init__(self, after: float) -> None:
        self.left = after

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0

    def synchronize(self) -> None:
        raise AssertionError("waits for ever where another rank hangs")


def test_an_event_is_waited_for() -> None:
    event = Event(3)
    CudaClock(torch.device("cuda"), patience_s=600).wait(event)
    assert event.left < 0


def test_a_gpu_that_does_not_end_ends_the_wait_as_one_for_another_rank() -> None:
    clock = CudaClock(torch.device("cuda:1"), patience_s=0.01)
    with pytest.raises(RuntimeError, match=r"timed out waiting 0.01 s for cuda:1") as raised:
        clock.wait(Event(float("inf")))
    assert has_waited(raised.value)


class Streams(HostClock):
    """Marks of two streams, of which only the compute stream's are done."""

    behind: frozenset[object] = frozenset()

    def __init__(self) -> None:
        self.waited: list[object] = []

    def wait(self, mark: object) -> None:
        self.waited.append(mark)

    def happened(self, mark: object) -> bool:
        return mark not in self.behind

    def synchronise(self) -> None:
        raise AssertionError("waits for every stream, those of collectives too")


def test_a_step_ends_with_its_own_work_and_not_with_collectives_that_go_on() -> None:
    timer = StepTimer(torch.device("cpu"))
    timer.clock = clock = Streams()
    with timer.device("forward"):
        pass
    timer.end_step()
    assert len(clock.waited) == 1


def test_compression_that_goes_on_is_told_with_the_next_step() -> None:
    clock = Streams()
    tally = Tally(clock, _spans=[("compress_ms", 0, 2_000_000), ("compress_ms", 2_000_000, 7_000_000)])
    clock.behind = frozenset([7_000_000])
    following = tally.take_under_way()
    assert tally.row(0)["compress_ms"] == 2
    clock.behind = frozenset()
    assert following.row(0)["compress_ms"] == 5
