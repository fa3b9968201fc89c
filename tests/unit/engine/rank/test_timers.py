"""Intervals go to their phase, on the host's clock and on a device's; a step lasts from the end of the one before."""

from __future__ import annotations

import pytest
import torch
from hands import Hands

from dynbench.clock import Clock, CudaClock
from dynbench.engine.failure import has_waited
from dynbench.engine.rank.timers import PHASES, StepTimer
from dynbench.wire.traffic import Spans


@pytest.fixture
def timer(hands: Hands) -> StepTimer:
    """On the host's clock, which tests move."""
    return StepTimer(torch.device("cpu"))


def test_phases_are_summed_and_cleared(hands, timer):
    for ms in (2, 3):
        with timer.device("forward"):
            hands.pass_ms(ms)
    with timer.host("plan"):
        hands.pass_ms(7)
    hands.pass_ms(11)
    phases, step_ms = timer.end_step()
    assert phases == dict.fromkeys(PHASES, 0) | {"forward": 5, "plan": 7}
    assert step_ms == 23
    assert timer.end_step() == (dict.fromkeys(PHASES, 0), 0)
    hands.pass_ms(20)
    timer.restart()
    hands.pass_ms(3)
    assert timer.end_step()[1] == 3, "what lies before is left out"


def test_ready_splits_backward_from_sync(hands, timer):
    with timer.backward():
        hands.pass_ms(2)
        timer.note_ready()
        hands.pass_ms(4)
    with timer.backward():
        hands.pass_ms(8)
    phases, _ = timer.end_step()
    assert (phases["backward"], phases["sync"]) == (2 + 8, 4), "noted once, it is not that of the next pass"


def test_compute_so_far_counts_finished_and_running_passes(hands, timer):
    with timer.device("forward"):
        hands.pass_ms(2)
    with timer.device("sync"):
        hands.pass_ms(3)
    assert timer.compute_ms() == 2
    with timer.backward():
        hands.pass_ms(4)
        with timer.waiting():
            hands.pass_ms(9)
        assert timer.compute_ms() == 2 + 4


def test_what_is_waited_for_within_a_phase_is_sync(hands, timer):
    with timer.waiting():
        hands.pass_ms(50)
    with timer.device("optimizer"):
        hands.pass_ms(1)
        for ms in (4, 6):
            with timer.waiting():
                hands.pass_ms(ms)
        hands.pass_ms(2)
    with timer.device("sync"), timer.waiting():
        hands.pass_ms(3)
    assert timer.end_step()[0] == dict.fromkeys(PHASES, 0) | {"optimizer": 3, "sync": 13}
    assert timer.synchronised.within_ms == {"optimizer": 10}
    spans = [span for span in timer.synchronised.spans_ns if span[0] < span[1]]
    assert spans == [(51_000_000, 55_000_000), (55_000_000, 61_000_000), (63_000_000, 66_000_000)]


def test_what_a_backward_pass_waits_for_before_its_gradients_are_ready_is_sync(hands, timer):
    """What is waited for after that is sync all the same, and counted once."""
    with timer.backward():
        hands.pass_ms(1)
        for ms in (10, 20):
            with timer.waiting():
                hands.pass_ms(ms)
            hands.pass_ms(2)
        timer.note_ready()
        hands.pass_ms(5)
        with timer.waiting():
            hands.pass_ms(40)
    phases, _ = timer.end_step()
    assert (phases["backward"], phases["sync"]) == (1 + 2 + 2, 10 + 20 + 5 + 40)
    assert timer.synchronised.within_ms == {"backward": 30}
    timer.end_step()
    assert (timer.synchronised.spans_ns, timer.synchronised.within_ms) == ([], {})


def test_every_phase_that_begins_is_told():
    told: list[str] = []
    timer = StepTimer(torch.device("cpu"), told.append)
    with timer.host("plan"):
        pass
    with timer.device("forward"), timer.waiting():
        pass
    with timer.backward():
        with timer.waiting():
            pass
        timer.note_ready()
        with timer.waiting():
            pass
    assert told == ["plan", "forward", "sync", "forward", "backward", "sync", "backward", "sync", "sync", "sync"]


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


def test_an_event_is_waited_for():
    event = Event(3)
    CudaClock(torch.device("cuda"), patience_s=600).wait(event)
    assert event.left < 0


def test_a_gpu_that_does_not_end_ends_the_wait_as_one_for_another_rank():
    clock = CudaClock(torch.device("cuda:1"), patience_s=0.01)
    with pytest.raises(RuntimeError, match=r"timed out waiting 0.01 s for cuda:1") as raised:
        clock.wait(Event(float("inf")))
    assert has_waited(raised.value)


class Streams(Clock):
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


def test_neither_a_step_nor_its_compute_waits_for_collectives_that_go_on(timer):
    timer.clock = clock = Streams()
    with timer.device("forward"):
        pass
    with timer.backward():
        timer.compute_ms()
    timer.end_step()
    assert len(clock.waited) == 2


def test_compression_that_goes_on_is_told_with_the_next_step():
    clock = Streams()
    spans = Spans(clock)
    clock.mark = iter([0, 2_000_000, 2_000_000, 7_000_000]).__next__  # type: ignore[method-assign]
    for _ in range(2):
        with spans.of("compress_ms"):
            pass
    clock.behind = frozenset([7_000_000])
    assert spans.take_ms()["compress_ms"] == 2
    clock.behind = frozenset()
    assert spans.take_ms()["compress_ms"] == 5
