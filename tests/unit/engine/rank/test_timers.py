"""Intervals go to their phase, on the host's clock and on a device's; a step lasts from the end of the one before."""

from __future__ import annotations

from functools import partial

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


def run(timer: StepTimer, hands: Hands, *script: object) -> None:
    """What a step does: a number passes as many ms, a tuple is a block or pass of that name and what is within it."""
    for part in script:
        if part == "ready":
            timer.note_ready()
        elif isinstance(part, tuple):
            name, *within = part
            blocks = {"backward": timer.backward, "wait": timer.waiting, "plan": partial(timer.host, "plan")}
            with blocks.get(name, partial(timer.device, name))():
                run(timer, hands, *within)
        else:
            hands.pass_ms(part)


@pytest.mark.parametrize(
    ("script", "phases", "within", "spans"),
    [
        ([("forward", 2), ("forward", 3), ("plan", 7), 11], {"forward": 5, "plan": 7}, {}, []),
        ([("backward", 2, "ready", 4), ("backward", 8)], {"backward": 2 + 8}, {}, [(2, 6)]),
        (
            [("wait", 50), ("optimizer", 1, ("wait", 4), ("wait", 6), 2), ("sync", ("wait", 3))],
            *({"optimizer": 3}, {"optimizer": 10}, [(51, 55), (55, 61), (63, 66)]),
        ),
        (
            [("backward", 1, ("wait", 10), 2, ("wait", 20), 2, "ready", 5, ("wait", 40))],
            *({"backward": 1 + 2 + 2}, {"backward": 30}, [(1, 11), (13, 33), (35, 80)]),
        ),
    ],
    ids=["summed", "ready once", "waits within a phase", "waits of a pass"],
)
def test_time_goes_to_its_phase_and_what_is_waited_for_within_one_is_sync_once(
    hands, timer, script, phases, within, spans
):
    none = dict.fromkeys(PHASES, 0)
    run(timer, hands, *script)
    assert timer.end_step() == (none | phases | {"sync": sum(end - begin for begin, end in spans)}, hands.now_ms)
    found = [(begin / 1e6, end / 1e6) for begin, end in timer.synchronised.spans_ns if begin < end]
    assert (found, timer.synchronised.within_ms) == (spans, within)
    assert timer.end_step() == (none, 0)
    assert (timer.synchronised.spans_ns, timer.synchronised.within_ms) == ([], {})


def test_a_step_begins_anew_where_it_is_told_to(hands, timer):
    hands.pass_ms(20)
    timer.restart()
    hands.pass_ms(3)
    assert timer.end_step()[1] == 3


def test_compute_so_far_counts_finished_and_running_passes(hands, timer):
    run(timer, hands, ("forward", 2), ("sync", 3))
    assert timer.compute_ms() == 2
    with timer.backward():
        run(timer, hands, 4, ("wait", 9))
        assert timer.compute_ms() == 2 + 4


def test_every_phase_that_begins_is_told(hands):
    told: list[str] = []
    timer = StepTimer(torch.device("cpu"), told.append)
    run(timer, hands, ("plan",), ("forward", ("wait",)), ("backward", ("wait",), "ready", ("wait",)))
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
    with timer.device("forward"), timer.backward():
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
