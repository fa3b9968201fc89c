"""Calls, bytes and times add up; what is under way is counted when it is done."""

from __future__ import annotations

import threading

import torch
from hypothesis import given
from hypothesis import strategies as st
from set_clock import SetClock

from dynbench.clock import NS_PER_MS
from dynbench.runs.records import Call
from dynbench.wire.segment import Segment, lay_out
from dynbench.wire.traffic import SENT, Ledger, Traffic, union_ms


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9))))
def test_the_union_of_intervals(spans: list[tuple[int, int]]) -> None:
    covered = {ms for start, length in spans for ms in range(start, start + length)}
    assert union_ms([(start * NS_PER_MS, (start + length) * NS_PER_MS) for start, length in spans]) == len(covered)


def sent(traffic: Traffic) -> list[tuple[str, int, float]]:
    """Operation, bytes and milliseconds of every call."""
    return [(call.operation, call.bytes_wire, (call.end_ns - call.start_ns) / NS_PER_MS) for call in traffic.calls]


def test_overlapping_calls_count_each_and_once_together() -> None:
    clock = SetClock()
    ledger = Ledger(clock)
    ledger.hand_in(400)
    first = ledger.begin("all_reduce", 100, 4)
    clock.now = 2
    second = ledger.begin("all_reduce", 300, 4)
    clock.now = 5
    ledger.end(second)
    clock.now = 6
    ledger.end(first)
    gather = ledger.begin("all_gather", 10, 4)
    clock.now = 10
    assert not ledger.idle
    traffic = ledger.take()
    assert sent(traffic) == [("all_reduce", 150, 6), ("all_reduce", 450, 3)]
    assert (traffic.busy_ms, traffic.bytes_raw, traffic.bytes_wire) == (6, 400, 600)
    assert traffic.sum_ms == 9
    ledger.end(gather)
    assert ledger.idle
    traffic = ledger.take()
    assert sent(traffic) == [("all_gather", 30, 4)]
    assert (traffic.busy_ms, traffic.bytes_raw) == (4, 0)
    assert sent(ledger.take()) == []


def test_what_the_device_has_not_done_comes_next_time() -> None:
    """On a GPU an operation is over for the host long before its mark on the device has happened."""
    clock = SetClock()
    ledger = Ledger(clock)
    entry = ledger.begin("all_gather", 10, 4)
    ledger.end(entry)
    entry.end = 7.0
    assert sent(ledger.take()) == []
    clock.now = 7
    assert sent(ledger.take()) == [("all_gather", 30, 7)]


def test_what_averages_gradients_is_told_from_the_rest() -> None:
    ledger = Ledger(SetClock())
    with ledger.in_place_of("gradient", "all_reduce", 400, 2):
        for operation in ("all_to_all", "all_gather"):
            ledger.end(ledger.begin(operation, 40, 2))
        elsewhere = threading.Thread(target=lambda: ledger.end(ledger.begin("broadcast", 8, 2)))
        elsewhere.start()
        elsewhere.join()
    ledger.end(ledger.begin("all_gather", 100, 2))
    traffic = ledger.take()
    assert (traffic.gradient_raw, traffic.gradient_wire) == (400, 20 + 40)
    assert traffic.bytes_wire == 20 + 40 + 4 + 100
    assert ledger.take().gradient_raw == 0


def test_an_all_reduce_sends_what_its_two_halves_send() -> None:
    size = 4 * 3 * 5
    for ranks in (1, 2, 3, 4, 5):
        halves = SENT["reduce_scatter"](size, ranks) + SENT["all_gather"](size // ranks, ranks)
        assert SENT["all_reduce"](size, ranks) == halves
    assert [SENT[name](size, 1) for name in SENT if name != "send"] == [0] * (len(SENT) - 1)


def test_segments_lie_one_after_the_other() -> None:
    segments = lay_out([("a", [2, 3]), ("b", []), ("c", [2])])
    assert segments == (Segment("a", 0, (2, 3)), Segment("b", 6, ()), Segment("c", 7, (2,)))
    flat = torch.arange(9.0)
    assert segments[0].of(flat).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert segments[1].of(flat).item() == 6
    segments[2].of(flat).zero_()
    assert flat[7:].tolist() == [0, 0]


def test_calls_are_numbered_by_who_takes_part() -> None:
    """So that those of several ranks find each other, whatever a rank sent to a third one in between."""
    ledger = Ledger(SetClock())
    calls = [
        *(("send", 2, 0), ("all_reduce", -1, 0), ("receive", 2, 0), ("send", 1, 0), ("broadcast", -1, 1)),
        *(("send", 2, 1), ("all_gather", -1, 2)),
    ]
    for operation, peer, _ in calls:
        ledger.end(ledger.begin(operation, 12, 4, peer))
    assert [(call.operation, call.peer, call.number) for call in ledger.take().calls] == calls
    ledger.end(ledger.begin("all_gather", 12, 4))
    assert ledger.take().calls == [Call("all_gather", -1, 3, 36, 0, 0)]
