"""Calls, bytes and times add up; what is under way is counted when it is done."""

from __future__ import annotations

import threading
from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st
from set_clock import SetClock

from dynbench.clock import NS_PER_MS
from dynbench.runs.records import Call
from dynbench.wire.segment import Segment, lay_out
from dynbench.wire.traffic import SENT, Ledger, union_ms


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9))))
def test_the_union_of_intervals(spans: list[tuple[int, int]]) -> None:
    covered = {ms for start, length in spans for ms in range(start, start + length)}
    assert union_ms([(start * NS_PER_MS, (start + length) * NS_PER_MS) for start, length in spans]) == len(covered)


@given(
    st.lists(st.tuples(st.sampled_from([*SENT]), st.integers(-1, 2), st.integers(0, 9), st.integers(0, 9))),
    st.lists(st.integers(0, 18), max_size=2).map(sorted),
)
def test_calls_are_counted_once_over_and_numbered_by_who_takes_part(
    calls: list[tuple[str, int, int, int]], looks: list[int]
) -> None:
    """On a GPU a call has ended for the host before its mark on the device has happened; ranks find calls by number."""
    clock, numbers, wanted = SetClock(), Counter[tuple[str, int]](), []
    ledger = Ledger(clock)
    for operation, peer, start, length in calls:
        clock.now = start
        entry = ledger.begin(operation, 12, 4, peer)
        clock.now = start + length
        ledger.end(entry)
        among, spent = ("" if peer < 0 else operation, peer), (start * NS_PER_MS, (start + length) * NS_PER_MS)
        wanted.append(Call(operation, peer, numbers[among], SENT[operation](12, 4), *spent))
        numbers[among] += 1
    for look in (*looks, 18):
        clock.now = look
        over = [call for call in wanted if call.end_ns <= look * NS_PER_MS]
        wanted = [call for call in wanted if call not in over]
        traffic = ledger.take()
        assert traffic.calls == over and traffic.bytes_wire == sum(call.bytes_wire for call in over)
        assert traffic.sum_ms * NS_PER_MS == sum(call.end_ns - call.start_ns for call in over)
        assert traffic.busy_ms == union_ms((call.start_ns, call.end_ns) for call in over)


def test_what_was_handed_in_is_told_at_once_and_nothing_is_idle_before_it_ends() -> None:
    ledger = Ledger(SetClock())
    ledger.hand_in(400)
    first, last = ledger.begin("all_gather", 10, 4), ledger.begin("all_gather", 10, 4)
    assert (ledger.take().bytes_raw, ledger.take().bytes_raw) == (400, 0)
    for entry in (last, first):
        assert not ledger.idle
        ledger.end(entry)
    assert ledger.idle


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
