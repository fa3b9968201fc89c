"""Waiting is told apart from transfer by when each rank called, judged by brute force on made-up calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.merge import merge_run
from dynbench.analysis.rank_files import by_operation, read_calls, waiting_and_transfer
from dynbench.analysis.summary import summary_of
from dynbench.runs.row_writer import CALL_COLUMNS, Call, CallWriter
from dynbench.runs.run import Run

Make = Callable[..., Run]
MS = 10**6
TRAFFIC = {"comm_ms": 8.0, "comm_sum_ms": 9.0, "hidden_comm_ms": 2.0, "collectives": 2, "bytes_wire": 100}


def call(number: int, start_ms: float, end_ms: float, operation: str = "all_reduce", peer: int = -1) -> Call:
    size = 0 if operation == "receive" else 1000
    return Call(operation, peer, number, size, round(start_ms * MS), round(end_ms * MS))


def keep(run: Run, *ranks: Sequence[tuple[int, Call]]) -> Run:
    """Write what each rank called, by step."""
    for rank, calls in enumerate(ranks):
        with CallWriter(run.calls_file(rank)) as writer:
            for step in sorted({step for step, _ in calls}):
                writer.write(step, [one for at, one in calls if at == step])
    return run


def told(run: Run, ranks: int = 2, ahead: Sequence[int] = ()) -> list[tuple[object, ...]]:
    """Rank, step, transfer and waiting."""
    calls = read_calls([run], range(ranks), ahead)
    assert calls is not None
    return waiting_and_transfer(calls).sort("rank", "step").rows()


def test_a_slow_rank_makes_the_others_wait_and_the_transfer_no_longer(make_run: Make) -> None:
    """The planted wait: rank 1 calls 30 ms later, and all ends as much later."""
    for late in (0, 30):
        first, second = (call(0, 100, 104 + late), call(0, 100 + late, 104 + late))
        found = told(keep(make_run("static"), [(0, first)], [(0, second)]))
        assert found == [(0, 0, 4, late), (1, 0, 4, 0)]


def test_calls_that_overlap_are_transfer_where_one_of_them_is(make_run: Make) -> None:
    """Of rank 0: 0 to 10 waiting, 10 to 14 transfer of the first, 14 to 20 of the second, which waited up to 12."""
    mine, theirs = [(0, call(0, 0, 14)), (0, call(1, 4, 20))], [(0, call(0, 10, 14)), (0, call(1, 12, 21))]
    assert told(keep(make_run("static"), mine, theirs)) == [(0, 0, 10, 10), (1, 0, 11, 0)]


def test_a_send_finds_the_receive_of_the_same_number_between_the_two(make_run: Make) -> None:
    server = [(0, call(0, 0, 7, "receive", 1)), (0, call(0, 7, 9, "receive", 2))]
    near, far = [(0, call(0, 5, 6, "send", 0))], [(0, call(0, 3, 9, "send", 0))]
    assert told(keep(make_run("static"), server, near, far), 3) == [(0, 0, 4, 5), (1, 0, 1, 0), (2, 0, 2, 4)]


def test_clocks_are_brought_together(make_run: Make) -> None:
    run = keep(make_run("static"), [(0, call(0, 0, 10))], [(0, call(0, 5006, 5010))])
    assert told(run, ahead=[0, 5000 * MS]) == [(0, 0, 4, 6), (1, 0, 4, 0)]


def test_what_a_rank_has_not_kept_is_not_known(make_run: Make) -> None:
    """A rank that was killed: the last step of the others has nobody to be held against."""
    run = keep(make_run("static"), [(0, call(0, 0, 10)), (1, call(1, 20, 30))], [(0, call(0, 6, 10))])
    with run.calls_file(1).open("a") as file:
        file.write("1,all_reduce,-1,1,1000,25")  # torn
    assert told(run) == [(0, 0, 4, 6), (0, 1, None, None), (1, 0, 4, 0)]
    run.calls_file(1).unlink()
    assert read_calls([run], range(2)) is None


@pytest.mark.parametrize("seed", range(4))
def test_against_brute_force_on_a_grid_of_milliseconds(make_run: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, steps, number = 3, 4, 0
    kept: list[list[tuple[int, Call]]] = [[] for _ in range(ranks)]
    for step in range(steps):
        for _ in range(rng.integers(1, 5)):
            starts = rng.integers(0, 60, ranks) + 1000 * step
            for rank in range(ranks):
                kept[rank].append((step, call(number, starts[rank], starts.max() + rng.integers(0, 20))))
            number += 1
    found = {(rank, step): rest for rank, step, *rest in told(keep(make_run("static"), *kept), ranks)}
    for rank in range(ranks):
        for step in range(steps):
            wanted, busy = set(), set()
            for place, (at, mine) in enumerate(kept[rank]):
                if at == step:
                    entered = max(kept[other][place][1].start_ns for other in range(ranks))
                    wanted |= set(range(entered // MS, mine.end_ns // MS))
                    busy |= set(range(mine.start_ns // MS, mine.end_ns // MS))
            assert found[rank, step] == [len(wanted), len(busy) - len(wanted)]


def test_rows_and_summaries_have_it_and_steps_in_which_nothing_was_sent_count_as_none(make_run: Make) -> None:
    """Half of the measured steps meet."""
    run = make_run("static", extra=TRAFFIC, steps=4, warmup_steps=2)
    for rank in range(2):
        lines = run.rank_file(rank).read_text().splitlines()
        place = lines[0].split(",").index("collectives")
        rows = [line.split(",") for line in lines[1:]]
        for step, row in enumerate(rows):
            row[place] = str(step % 2)
        run.rank_file(rank).write_text("\n".join([lines[0], *(",".join(row) for row in rows)]) + "\n")
    meets = [[(step, call(step, 10 * step + late, 10 * step + 6)) for step in (1, 3, 5)] for late in (0, 2)]
    merged = merge_run(keep(run, *meets))
    summary = summary_of(merged)
    assert summary["comm_transfer_ms"] == {"mean": 2.0} and summary["comm_wait_ms"] == {"mean": 0.5}
    assert summary["overlap_fraction"] == 0.25
    (found,) = summary["by_operation"]  # type: ignore[misc, attr-defined]
    assert found == {
        "side": "worker", "operation": "all_reduce", "calls": 0.5, "ms": 2.5, "wait_ms": 0.5, "transfer_ms": 2.0,
        "bytes": 500.0, "gb_per_s": pytest.approx(500 / 2e-3 / 1e9),
    }  # fmt: skip
    rows = pl.read_parquet(run.path / "merged_metrics.parquet").filter(pl.col("rank") == 0).sort("step")
    assert rows["comm_wait_ms"].to_list() == [0, 2, 0, 2, 0, 2]


@pytest.mark.parametrize("line", ["1,all", "x,2,3,4,5,6,7,8,9", "\0" * 50, '"1,all_reduce'])
def test_a_damaged_line_is_left_out(make_run: Make, line: str) -> None:
    run = keep(make_run("static"), [(0, call(0, 0, 2))], [(0, call(0, 1, 2))])
    with run.calls_file(0).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    assert told(run) == [(0, 0, 1, 1), (1, 0, 1, 0)]


def test_another_file_in_its_place_is_told_and_the_run_has_no_calls(
    make_run: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run = keep(make_run("static"), [(0, call(0, 0, 2))], [(0, call(0, 1, 2))])
    run.calls_file(0).write_text("step,rank\n0,0\n", encoding="utf-8")
    assert read_calls([run], range(2)) is None
    assert "calls_0.csv: has other columns than step, operation" in caplog.text


def test_both_sides_of_a_server_have_operations_of_their_own(make_run: Make) -> None:
    server = [(0, call(0, 0, 7, "receive", 1)), (0, call(0, 8, 9, "send", 1))]
    worker = [(0, call(0, 5, 7, "send", 0)), (0, call(0, 7, 9, "receive", 0))]
    calls = read_calls([keep(make_run("static"), server, worker)], range(2))
    assert calls is not None
    told = by_operation(calls, pl.Series([0]), 1)
    assert {row["operation"] for row in told if row["gb_per_s"] is None} == {"receive"}, "it sends nothing"
    found = [(row["side"], row["operation"], row["wait_ms"]) for row in told]
    assert sorted(found) == [
        ("server", "receive", 5),
        ("server", "send", 0),
        ("worker", "receive", 1),
        ("worker", "send", 0),
    ]


def test_calls_beyond_the_limit_are_left_out_step_by_step(make_run: Make) -> None:
    run = make_run("static")
    with CallWriter(run.calls_file(0), most=3) as writer:
        for step in range(4):
            writer.write(step, [call(2 * step, 0, 1), call(2 * step + 1, 0, 1)] if step < 2 else [call(9, 0, 1)])
    assert [line.split(",")[0] for line in run.calls_file(0).read_text().splitlines()] == [CALL_COLUMNS[0], "0", "0"]
