"""What every wire answers, what a channel counts, and that nothing hangs where something fails."""

from __future__ import annotations

import pytest
from warm import WarmRanks
from wire_jobs import (
    after_a_failure,
    beyond_the_formula,
    charged,
    clocks_apart,
    closed_with_work_left,
    every_operation,
    every_verb,
    large_gather,
    over_a_link,
)

from dynbench.analysis.communication import HEADER_BYTES
from dynbench.wire.traffic import SENT

pytestmark = pytest.mark.multiproc

MINE = [1.0, 2.0, 3.0, 4.0]


def times(values: list[float], factor: float) -> list[float]:
    return [value * factor for value in values]


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int32", "int16", "uint8", "float8_e4m3fn"]
)
def test_every_operation_on_every_type(ranks: WarmRanks, dtype: str) -> None:
    size = {"float64": 8, "float32": 4, "int32": 4, "uint8": 1, "float8_e4m3fn": 1}.get(dtype, 2)
    for rank, (results, traffic) in enumerate(ranks(every_operation, dtype)):
        expected = {
            "all_reduce": times(MINE, 3),
            "reduce_scatter": times(MINE, 3)[2 * rank : 2 * rank + 2],
            "all_gather": MINE + times(MINE, 2),
            "all_to_all": [v * f for f in (1, 2) for v in MINE[2 * rank : 2 * rank + 2]],
            "broadcast": times(MINE, 2),
            "receive": times(MINE, 2 - rank),
        }
        assert results == {name: expected[name] for name in results}
        assert sorted(call.operation for call in traffic.calls) == sorted({*results, "send"})
        for call in traffic.calls:
            assert call.bytes_wire == SENT[call.operation](4 * size, 2)
            assert call.end_ns > call.start_ns


WANTED = {
    "mean": times(MINE, 1.5),
    "broadcast": times(MINE, 2),
    "gather": [1.0, 2.0, 2.0, 4.0],
}


@pytest.mark.parametrize("kind", ["plain", "queued", "linked"])
def test_every_verb(ranks: WarmRanks, kind: str) -> None:
    answers = ranks(every_verb, kind)
    for rank, (results, traffic) in enumerate(answers):
        assert {verb: results[verb] for verb in WANTED} == WANTED
        assert results["mean_shard"] == WANTED["mean"][2 * rank : 2 * rank + 2]
        handed_in = 16 + 16 + 8 + 16 + (16 if rank == 0 else 0)
        assert traffic.bytes_raw == handed_in
        assert traffic.bytes_wire > 0
    assert answers[1][0]["receive"] == MINE


def test_a_null_wire_answers_with_what_it_was_given(ranks: WarmRanks) -> None:
    for rank, (results, traffic) in enumerate(ranks(every_verb, "null")):
        own = times(MINE, rank + 1)
        assert results["mean"] == results["broadcast"] == own
        assert results["mean_shard"] == own[2 * rank : 2 * rank + 2]
        assert results["gather"] == ([*own[:2], 0.0, 0.0] if rank == 0 else [0.0, 0.0, *own[:2]])
        assert results.get("receive", [0.0] * 4) == [0.0] * 4
        assert (traffic.calls, traffic.bytes_wire, traffic.busy_ms) == ([], 0, 0.0)


@pytest.mark.parametrize(("native", "size"), [(False, 16), (True, 32)])
def test_a_link_is_charged_what_gloo_sends(ranks: WarmRanks, native: bool, size: int) -> None:
    """Of two ranks' 32 bytes each; its own reduce-scatter is an all-reduce, though accounted as a reduce-scatter."""
    assert ranks(charged, native) == [[size]] * 2


def test_after_a_failure_every_future_raises_it(ranks: WarmRanks) -> None:
    assert ranks(after_a_failure) == [["[1.0, 1.0, 1.0, 1.0]"] * 2 + ["cannot compress"] * 3] * 2


def test_a_wire_that_is_closed_gives_up_what_was_not_begun(ranks: WarmRanks) -> None:
    given_up = "the wire was closed before this was sent"
    assert ranks(closed_with_work_left) == [["[1.0, 1.0, 1.0, 1.0]", given_up, given_up]] * 2


def test_a_large_gather_is_one_all_gather_to_who_counts(ranks: WarmRanks) -> None:
    assert ranks(large_gather) == [True, True]


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send"])
@pytest.mark.parametrize(("elements", "calls"), [(2, 100), (4000, 100), (200_000, 100), (3_000_000, 1)])
def test_the_kernel_counts_the_bytes_of_the_formulas_and_few_of_headers(
    ranks: WarmRanks, four: WarmRanks, operation: str, elements: int, calls: int
) -> None:
    for warm in (ranks, four) if elements < 10**6 else (ranks,):
        found = warm(beyond_the_formula, operation, elements, calls)
        if elements < 10**6:
            assert 0 < max(beyond for _, beyond in found) <= HEADER_BYTES, found
        else:
            assert [ratio for ratio, _ in found] == pytest.approx([1.0] * 2, abs=0.02)


def test_what_is_sent_past_the_wire_is_counted(ranks: WarmRanks) -> None:
    found = ranks(beyond_the_formula, "all_reduce", 3_000_000, 1, True)
    assert [ratio for ratio, _ in found] == pytest.approx([2.0] * 2, abs=0.04)


def test_an_emulated_link_takes_its_time_for_all_gradients_and_all_of_a_broadcast(ranks: WarmRanks) -> None:
    gbps, sizes = 0.01, [20_000, 5_000, 15_000]
    for elapsed_s, busy_ms, broadcast_s, means in ranks(over_a_link, gbps, sizes):
        assert means == [1.5] * len(sizes)
        assert elapsed_s >= 0.99 * sum(sizes) * 4 * 8 / (gbps * 1e9), "one after the other"
        assert busy_ms >= 990 * sum(sizes) * 4 * 8 / (gbps * 1e9), "so the calls are timed"
        assert broadcast_s >= 0.99 * sizes[0] * 4 * 8 / (gbps * 1e9)


def test_clocks_are_compared_where_ranks_read_different_ones(ranks: WarmRanks) -> None:
    found, as_they_are = ranks(clocks_apart, 5.0)[0]
    first, second = found["offsets_ns"]
    assert first == 0 and abs(second - 5e9) <= found["uncertainty_ns"] < 1e9
    assert found["source"] == "measured"
    assert as_they_are == {"offsets_ns": [0, 0], "uncertainty_ns": 0, "source": "same"}
