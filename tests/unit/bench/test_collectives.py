"""The collectives benchmark: its options, its arithmetic, what it finds wrong, and the file that `train` reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from answered import unanswered
from bench_jobs import made, rows_here, rows_on, with_a_wrong_one, without
from warm import RankError, WarmRanks

from dynbench.bench import collective_calls, collectives
from dynbench.bench.base import ELEMENT_BYTES, Row
from dynbench.bench.collective_calls import PERIOD, compare, contribution, fill, known_sum
from dynbench.bench.collectives import BUS_FACTORS, COMM_FILE, DIVIDED, fit_alpha_beta
from dynbench.bench.record import read_options
from dynbench.clock import Clock
from dynbench.engine.rank.row_builder import can_count
from dynbench.errors import ConfigError
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import MOST_RANKS, CollectivesOptions

CPU = torch.device("cpu")
OPERATIONS = tuple(BUS_FACTORS)


@pytest.fixture(scope="module")
def measured(ranks: WarmRanks) -> Sequence[Row]:
    """Every operation and type on two ranks, two sizes."""
    first, second = ranks(rows_on, {"sizes_mib": (0.5, 0.01), "dtype": ("float32", "bfloat16")})
    assert [row.columns for row in first] == [row.columns for row in second], "the same on every rank"
    return first


def test_right_collectives_have_nothing_wrong(measured):
    assert unanswered("collectives", measured) == []
    named = [(row.dtype, row.columns["operation"]) for row in measured[::2]]
    assert named == [(dtype, operation) for dtype in ("float32", "bfloat16") for operation in OPERATIONS]
    for row in measured:
        columns, operation = row.columns, str(row.columns["operation"])
        assert (columns["#wrong"], row.reference_error, row.status, row.n, row.unit) == (0, 0.0, "ok", 3, "ms")
        assert 0 < row.p20 <= row.p50 <= row.p80 <= float(columns["p95"]) <= float(columns["p99"])
        parts = 2 if operation in DIVIDED else 1
        assert columns["size"] == int(columns["count"]) * parts * ELEMENT_BYTES[row.dtype], "as nccl-tests counts"
        assert columns["algbw"] == pytest.approx(int(columns["size"]) / (row.mean * 1e6))
        assert columns["busbw"] == pytest.approx(float(columns["algbw"]) * BUS_FACTORS[operation](2))
        assert columns.get("unequal") == (0 if operation in collective_calls.SAME_ON_ALL else None)
    assert all(a.columns["size"] < b.columns["size"] for a, b in zip(measured[::2], measured[1::2], strict=True))


@pytest.mark.skipif(not can_count(), reason="the kernel does not count the bytes of connections")
def test_bytes_that_the_kernel_counts(measured):
    for row in measured:
        columns = row.columns
        if int(columns["size"]) < 2**19:
            continue
        ratio = int(columns["sent_bytes"]) / int(columns["least_bytes"])
        # gloo reduces everything on every rank and then keeps a part: N all-reduces of S/N.
        most = 2.1 if columns["operation"] == "reduce_scatter" else 1.02
        assert 0.99 < ratio < most, (row.case, ratio)


@pytest.mark.parametrize(("fault", "queued"), [("left out", False), ("one element", False), ("one element", True)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_collective_is_counted_and_told(ranks, operation, fault, queued):
    for (row,) in ranks(with_a_wrong_one, operation, fault, queued):
        parts = 2 if operation == "reduce_scatter" else 1
        least = 1 if fault == "one element" else row.shape[0] // parts // 2
        assert least <= int(row.columns["#wrong"]) <= row.shape[0] and row.reference_error > 0
        assert fault == "left out" or queued or row.columns["#wrong"] == 1
        said = made("collectives").said([row])
        assert "broken" in said[0]
        if operation in collective_calls.SAME_ON_ALL:
            assert row.columns["unequal"] == 1 and "differ from those of rank 0" in said[1]


def test_what_a_back_end_does_not_have_is_a_row_and_a_broken_connection_is_none(ranks):
    for words in ("ProcessGroupGloo does not support reduce_scatter", "Invalid scalar type"):
        for rows in ranks(without, RuntimeError(words)):
            assert [row.status for row in rows] == ["ok", "skipped"] and words in str(rows[1].reason)
    with pytest.raises(RankError, match="Connection closed by peer"):
        ranks(without, RuntimeError("Connection closed by peer"))


def test_iterations_that_are_queued_are_measured_and_judged_alike(ranks):
    first, second = ranks(rows_on, {"dtype": ("float32", "float16"), "iterations": 20}, True)
    assert [row.columns for row in first] == [row.columns for row in second]
    assert {(row.n, row.columns["#wrong"], row.columns.get("unequal", 0)) for row in first} == {(20, 0, 0)}


def test_a_queue_begins_behind_a_collective_and_goes_on_without_a_pause(monkeypatch):
    done: list[str] = []

    class Noted(Clock):
        def mark(self) -> int:
            done.append("mark")
            return super().mark()

        def synchronise(self) -> None:
            done.append("synchronise")

    monkeypatch.setattr(collective_calls, "max_over_ranks", lambda _: None)
    monkeypatch.setattr(collective_calls.dist, "all_reduce", lambda *_, **__: done.append("together"))
    prepared = collective_calls.Prepared(lambda: None, lambda: done.append("call"), torch.zeros(4), [])
    options = CollectivesOptions(warmup=1, iterations=3)
    assert len(collective_calls._queued(prepared, options, Noted(), None)) == 3
    row, once = ["synchronise", "together", "mark"], ["call", "mark"]
    assert done == [*row, *once, "synchronise", *row, *3 * once, "synchronise", "call", "synchronise"]


def test_no_room_is_a_row(ranks):
    rows = ranks(rows_on, {"operations": ("all_reduce",), "sizes_mib": (0.01, 2.0**40)})[0]
    assert [row.status for row in rows] == ["ok", "oom"] and "2 x 2 x 1.15e+06 TB" in str(rows[1].reason)


@pytest.mark.parametrize("queued", [False, True])
def test_what_the_last_iteration_left_is_judged_also_where_time_was_over(ranks, queued):
    for rows in ranks(rows_on, {"limit_s": 1e-9}, queued):
        assert {row.columns["operation"] for row in rows} == set(BUS_FACTORS)
        assert [(row.n, row.columns["#wrong"]) for row in rows] == [(1, 0)] * len(rows)
    said = made("collectives", limit_s=1e-9).said(rows)
    assert any("1 iterations, as limit_s=1e-09 was over" in line for line in said)


@pytest.mark.parametrize("world_size", [2, 4, 5, 6, MOST_RANKS])
def test_every_wrong_sum_differs_from_the_known_one_which_is_exact_in_every_type(world_size):
    parts = torch.stack([contribution(rank) for rank in range(world_size)])
    right = known_sum(world_size)
    assert torch.equal(parts.sum(0), right) and len(parts.unique(dim=0)) == world_size
    for wrong in (parts[:-1].sum(0), torch.cat([parts, parts[-1:]]).sum(0), parts.amax(0), right.roll(1)):
        assert not torch.equal(wrong, right)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(right.to(dtype).long(), right)


@pytest.mark.parametrize("elements", [3, PERIOD, 3 * PERIOD + 5])
def test_comparing_finds_every_element(elements):
    known = [contribution(1), contribution(2)]
    result = torch.cat([fill(torch.empty(elements), pattern) for pattern in known])
    assert compare(result, known) == (0, 0.0)
    assert torch.equal(fill(torch.empty(elements), contribution(1, 2)), fill(torch.empty(elements + 2), known[0])[2:])
    for index in range(2 * elements):
        changed = result.clone()
        changed[index] += 2
        assert compare(changed, known) == (1, 2.0)


def test_every_combination_is_a_case(monkeypatch):
    monkeypatch.setattr(collectives, "_gpus", lambda: 2)
    backends, dtypes = ("gloo", "nccl", "gloo-cuda"), ("float32", "bfloat16")
    benchmark = made("collectives", processes=(2, 4), backend=backends, dtype=dtypes, sizes_mib=(1, 2))
    cases = benchmark.cases()
    assert len(cases) == 2 * 6 * 2 * (3 + 2) + 1 and benchmark.processes == 4
    assert len({case.name for case in cases}) == len(cases)
    assert [benchmark.ranks_of(case) for case in cases] == sorted(benchmark.ranks_of(case) for case in cases)
    assert [case.name for case in cases if not case.shape] == ["nccl x4"], "two GPUs are too few for NCCL"
    six = made("collectives", processes=(6,), backend=("gloo",)).cases()
    assert {case.shape[0] % 6 for case in six if case.columns["operation"] in collectives.DIVIDED} == {0}
    auto = made("collectives", processes=(2, 4)).cases()
    assert {(case.columns["processes"], case.columns["backend"]) for case in auto} == {(2, "nccl"), (4, "gloo")}


def test_a_back_end_without_its_gpus_is_one_row(monkeypatch):
    monkeypatch.setattr(collectives, "_gpus", lambda: 0)
    benchmark = made("collectives", backend=("nccl", "gloo-cuda"))
    rows = rows_here(benchmark)
    assert [(row.case, row.status) for row in rows] == [("nccl x2", "skipped"), ("gloo-cuda x2", "skipped")]
    assert "a GPU for each of 2 processes, here are 0" in str(rows[0].reason)
    assert benchmark.said(rows) == [] and benchmark.further_files(rows) == {}


def test_one_all_reduce_is_for_virtual_ranks(measured):
    benchmark = made("collectives")
    reduced = [row for row in measured if row.columns["operation"] == "all_reduce" and row.dtype == "float32"]
    points = benchmark.further_files(measured)[COMM_FILE]["allreduce"]
    assert [point["ms"] for point in points] == [row.p50 for row in reduced]
    assert benchmark.summary([reduced[0]] * 2)["fits"] == [], "they are of one size"
    fits = benchmark.summary(measured)["fits"]
    assert len(fits) == 2 * 6 and (fits[0]["operation"], fits[0]["type"]) == ("all_reduce", "float32")


def test_the_fit_finds_latency_and_bandwidth():
    fit = fit_alpha_beta([(megabytes, 0.5 + 0.2 * megabytes) for megabytes in (1.0, 10.0, 100.0)])
    assert (fit["alpha_ms"], fit["beta_ms_per_mb"], fit["r2"]) == pytest.approx((0.5, 0.2, 1.0))
    assert len(fit["errors"]) == 3
    assert fit_alpha_beta([(1.0, 1.0), (2.0, 3.0)])["r2"] is None, "a line meets any two points"
    off_by_3_percent = fit_alpha_beta([(1.0, 0.7), (10.0, 2.5), (100.0, 20.5), (1000.0, 206.5)])
    assert off_by_3_percent["alpha_ms"] == pytest.approx(0.5, rel=0.1), "by absolute errors it is 0.28"
    assert fit_alpha_beta([(1.0, 1.0), (10.0, 1.0), (100.0, 9.0)])["r2"] < 1


def test_all_mistakes_in_options_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        read_options("collectives", ["size_mib=1", "processes=1", "sizes_mib=0", "dtype=float23", "nothing"])
    for said in ("'sizes_mib'?", "--set processes: [1]", "--set sizes_mib", "'float23'", "--set nothing"):
        assert said in "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_cases_of_different_names_and_more_with_full(name):
    entry = BENCHMARKS.find(name)
    small, full = (entry.load()(read_options(name, texts)) for texts in ((), entry.full))
    for benchmark in (small, full):
        names = [case.name for case in benchmark.cases()]
        assert names and all(names) and len(set(names)) == len(names)
    assert not entry.full or full.options != small.options
    if small.processes > 1:
        assert entry.load()(read_options(name, ["timeout_s=7"])).timeout_s == 7
