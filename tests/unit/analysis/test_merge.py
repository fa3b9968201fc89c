"""Rank files read, merged, and made steps and blocks of."""

from __future__ import annotations

import csv
import resource
from collections import defaultdict
from contextlib import ExitStack

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from dynbench.analysis import steps as steps_module
from dynbench.analysis.merge import merge_run
from dynbench.analysis.pace import _effective
from dynbench.analysis.rank_files import read_rank_file
from dynbench.analysis.steps import PHASES, block_times, number_blocks, step_table
from dynbench.analysis.verdict import p_value
from dynbench.errors import RecordError, StorageError, user_error
from dynbench.runs.records import Column, read_columns, write_columns


def raw_rows(run):
    """Every row of every rank, by step, read without the code under test."""
    by_step = defaultdict(list)
    for path in sorted(run.ranks_dir.glob("rank_*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                by_step[int(row["step"])].append(row)
    return by_step


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def test_the_step_table_equals_a_plain_computation(make_run):
    run = make_run("partition", world_size=3, global_batch=24)
    merged = merge_run(run)
    for row in merged.steps.iter_rows(named=True):
        rows = raw_rows(run)[row["step"]]
        sync, batch = column(rows, "sync_ms"), column(rows, "local_batch")
        step_ms = column(rows, "step_time_ms").max()
        expected = {
            "exposed_comm_ms": sync.min(),
            "wait_ms_mean": (sync - sync.min()).mean(),
            "wait_max_ms": (sync - sync.min()).max(),
            "step_time_max_ms": step_ms,
            "global_batch": batch.sum(),
            "real_tokens": column(rows, "real_tokens").sum(),
            "padded_tokens": column(rows, "padded_tokens").sum(),
            "padded_tokens_max": column(rows, "padded_tokens").max(),
            "loss_global": (batch * column(rows, "loss")).sum() / batch.sum(),
            "throughput_samples_per_s": 1000 * batch.sum() / step_ms,
            "throughput_tokens_per_s": 1000 * column(rows, "real_tokens").sum() / step_ms,
        }
        for name in ("compute_ms", "step_time_ms", "padded_tokens", "peak_mem_mb"):
            expected[f"{name}_std"] = column(rows, name).std()
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
        assert row["work_hash"] == sum(int(each["work_hash"]) for each in rows) % 2**64
        assert row["warmup"] == (row["step"] < 10)


@pytest.mark.parametrize("at_once", [1, 7, 30])
def test_steps_are_the_same_however_many_rows_are_grouped_at_once(make_run, monkeypatch, at_once):
    """Ranks that begin later, end earlier, or lack a step or a column included."""
    run = make_run("partition", world_size=3, global_batch=24)
    first, second, third = (read_rank_file(rank, run.rank_file(rank)).rows for rank in range(3))
    ranks = [first.slice(3), second.filter(pl.col("step") != 20), third[:40].with_columns(comm_ms=1.5)]
    table, incomplete = step_table(ranks)
    assert incomplete == first.height - table.height
    assert table["step"].to_list() == [step for step in range(3, 40) if step != 20]
    monkeypatch.setattr(steps_module, "ROWS_AT_ONCE", at_once)
    found, left_out = step_table(ranks)
    assert left_out == incomplete
    assert_frame_equal(found, table, rel_tol=1e-12)


def test_servers_count_in_no_step(make_run):
    alone, served = merge_run(make_run("partition")), merge_run(make_run("partition", servers=2))
    assert (served.world_size, served.workers, served.missing_ranks, served.partial) == (4, 2, (), False)
    for name in ("global_batch", "real_tokens", "padded_tokens_max", "padded_tokens_std", "loss_global", "work_hash"):
        assert served.steps[name].to_list() == alone.steps[name].to_list(), name
    assert served.steps["step_time_max_ms"].max() < 9e3
    assert served.time_ms < 9e3
    rows = pl.read_parquet(served.run.path / "merged_metrics.parquet")
    assert rows["rank"].n_unique() == 4
    assert rows.filter(pl.col("wait_ms").is_null())["rank"].unique().sort().to_list() == [0, 1]


def test_merged_files_hold_the_same_rows(make_run):
    run = make_run("partition", steps=20)
    merged = merge_run(run)
    parquet = pl.read_parquet(run.path / "merged_metrics.parquet")
    text = pl.read_csv(run.path / "merged_metrics.csv", schema_overrides={"work_hash": pl.UInt64})
    assert parquet.height == text.height == merged.rows == 60
    assert parquet.columns == text.columns
    waits = parquet.group_by("step").agg(pl.col("wait_ms").min().alias("least"), pl.col("wait_ms").max().alias("most"))
    assert waits["least"].abs().max() < 1e-5
    assert waits["most"].min() > 0
    assert np.allclose(parquet["wait_ms"], parquet["sync_ms"] - parquet["exposed_comm_ms"], atol=1e-4)


def test_steps_without_all_ranks_do_not_count(make_run):
    run = make_run("static", steps=10, warmup_steps=2)
    path = run.rank_file(1)
    path.write_bytes(path.read_bytes()[:-20])
    merged = merge_run(run)
    assert (merged.steps.height, merged.incomplete_steps, merged.torn_lines) == (11, 1, 1)
    assert merged.lacks == ("9 of 10 measured steps",)
    written = pl.read_parquet(run.path / "merged_metrics.parquet")
    assert written.filter(pl.col("step") == 11)["step_time_max_ms"].to_list() == [None]


def test_what_is_there_of_a_run_with_missing_ranks_is_used(make_run):
    merged = merge_run(make_run("static", world_size=4, ranks_written=3))
    assert (merged.ranks, merged.missing_ranks, merged.measured.height) == ((0, 1, 2), (3,), 40)
    assert merged.lacks == ("1 of 4 ranks have no rows (rank 3)",)


def test_a_foreign_file_is_named_and_the_rest_used(make_run):
    run = make_run("partition", world_size=3)
    run.rank_file(2).write_text("epoch,loss\n1,0.5\n")
    merged = merge_run(run)
    assert merged.ranks == (0, 1)
    assert "rank_2.csv is of another version" in merged.notes[0]


def test_a_run_without_a_row_is_refused_with_what_was_found(make_run):
    run = make_run("static", steps_written=0)
    with pytest.raises(RecordError, match=r"no row that can be read: rank_0.csv has no row; rank_1.csv has no row"):
        merge_run(run)
    for path in run.ranks_dir.iterdir():
        path.unlink()
    with pytest.raises(RecordError, match="no rank files in"):
        merge_run(run)


def test_a_missing_environment_is_survived(make_run):
    run = make_run("static")
    run.env_file.unlink()
    assert merge_run(run).facts.env == {}


def test_extra_columns_are_carried(make_run):
    run = make_run("static", extra={"comm_ms": 2.5, "bytes_raw": 4000, "bytes_wire": 1000})
    steps = merge_run(run).steps
    assert steps["comm_ms"].unique().to_list() == [2.5]
    assert "bytes_wire" in pl.read_parquet(run.path / "merged_metrics.parquet").columns


def test_a_full_disk_is_told_as_what_it_is(make_run, monkeypatch):
    """polars may say of a full disk that its own file is wrong."""

    def sink(self, path, **_):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limit)
        raise pl.exceptions.ComputeError("parquet: File out of specification")

    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", sink)
    run = make_run("static")
    with ExitStack() as stack, pytest.raises(OSError, match="File too large") as caught:
        merge_run(run)
    assert isinstance(user_error(caught.value), StorageError) and "merged_metrics.parquet" in str(caught.value)
    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", lambda self, path, **_: pl.DataFrame().select("no such column"))
    with pytest.raises(pl.exceptions.PolarsError):
        merge_run(run)


@pytest.fixture
def rank_file(make_run):
    return make_run("static", steps=5, warmup_steps=2).rank_file(1)


@pytest.mark.parametrize("cut", [1, 5, 40, 100])
def test_a_torn_last_line_is_dropped_and_counted(rank_file, cut):
    rank_file.write_bytes(rank_file.read_bytes()[:-cut])
    found = read_rank_file(1, rank_file)
    assert (found.rows["step"].to_list(), found.torn_lines) == ([0, 1, 2, 3, 4, 5], 1)


@pytest.mark.parametrize("line", ["3,1", "x" * 30, "3,1,0,static,garbage" + ",1" * 17, "\x00" * 50])
def test_an_unreadable_line_in_the_middle_is_dropped_and_counted(rank_file, line):
    lines = rank_file.read_text().splitlines()
    lines[4] = line
    rank_file.write_text("\n".join(lines) + "\n")
    found = read_rank_file(1, rank_file)
    assert (found.rows["step"].to_list(), found.torn_lines) == ([0, 1, 2, 4, 5, 6], 1)


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("", "is empty"),
        ("step,rank,war", "is empty"),
        ("step,rank\n0,1\n", "another version: it lacks warmup"),
    ],
)
def test_a_file_without_rows_is_named(rank_file, content, note):
    rank_file.write_text(content)
    found = read_rank_file(1, rank_file)
    assert found.rows is None
    assert note in found.note


def test_another_ranks_rows_are_refused(rank_file):
    assert "holds rows of rank 1" in read_rank_file(0, rank_file).note


def test_repeated_steps_keep_the_first(rank_file):
    text = rank_file.read_text()
    rank_file.write_text(text + text.splitlines()[3] + "\n")
    found = read_rank_file(1, rank_file)
    assert found.rows["step"].to_list() == list(range(7))
    assert "1 rows dropped" in found.note


def test_a_loss_that_is_not_a_number_is_no_torn_line(rank_file):
    text = rank_file.read_text().splitlines()
    cells = text[2].split(",")
    cells[text[0].split(",").index("loss")] = "nan"
    text[2] = ",".join(cells)
    rank_file.write_text("\n".join(text) + "\n")
    found = read_rank_file(1, rank_file)
    assert (found.rows.height, found.torn_lines) == (7, 0)
    assert found.rows["loss"].is_nan().sum() == 1


def with_columns(rank_file, **values):
    """The file with columns added, each with one value in every row."""
    header, *rows = rank_file.read_text().splitlines()
    lines = [",".join([header, *values]), *(",".join([row, *map(str, values.values())]) for row in rows)]
    rank_file.write_text("\n".join(lines) + "\n")


def test_declared_columns_are_kept_with_their_types(rank_file):
    with_columns(rank_file, rounds=2**40, codec="topk", ratio=0.25, unheard_of=1.5, empty="")
    columns = [
        Column("rounds", "integer", "", "Rounds."),
        Column("codec", "text", "", "What is sent."),
        Column("ratio", "number", "", "Part that is sent."),
        Column("empty", "number", "ms", "Not in every step."),
    ]
    write_columns(rank_file.parent, columns)
    found = read_rank_file(1, rank_file)
    assert (found.rows.height, found.torn_lines, found.note) == (7, 0, None)
    assert found.rows.row(0, named=True).items() >= {"rounds": 2**40, "codec": "topk", "ratio": 0.25}.items()
    assert found.rows["unheard_of"].unique().to_list() == [1.5]
    assert found.rows["empty"].null_count() == 7
    assert read_columns(rank_file.parent) == {column.name: column for column in columns}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"columns": [{"name": "a"}]}'])
def test_a_declaration_that_cannot_be_read_is_warned_of_and_the_rows_stay(rank_file, caplog, content):
    with_columns(rank_file, rounds=3)
    (rank_file.parent / "columns.json").write_text(content)
    assert read_rank_file(1, rank_file).rows["rounds"].to_list() == [3.0] * 7
    assert "columns.json cannot be read" in caplog.text


def test_squares_of_lengths_that_were_not_recorded_are_null_and_no_line_is_torn(rank_file):
    names = ("real_tokens2", "padded_tokens2")
    pl.read_csv(rank_file).drop(names).write_csv(rank_file)
    found = read_rank_file(1, rank_file)
    assert (found.note, found.torn_lines, found.rows.height) == (None, 0, 7)
    assert [(found.rows[name].dtype, found.rows[name].null_count()) for name in names] == [(pl.Int64(), 7)] * 2


def test_a_file_from_before_layouts_were_recorded_is_of_padded_batches(rank_file):
    lines = [line.split(",") for line in rank_file.read_text().splitlines()]
    place = lines[0].index("layout")
    rank_file.write_text("".join(",".join(cells[:place] + cells[place + 1 :]) + "\n" for cells in lines))
    found = read_rank_file(1, rank_file)
    assert (found.note, found.torn_lines) == (None, 0)
    assert set(found.rows["layout"]) == {"padded"} and found.rows.height == 7


def rewrite(run, step_ms):
    """Gives every row the step time `step_ms(step, rank)`, ms."""
    for path in run.ranks_dir.glob("rank_*.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row["step_time_ms"] = repr(float(step_ms(int(row["step"]), int(row["rank"]))))
        with path.open("w") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return run


def alternating(step, rank):
    """Two ranks that end their steps in turn 10 ms late: every step is 110 ms on one of them, 100 ms pass per step."""
    return 110.0 if step % 2 == rank else 90.0


@pytest.fixture
def quiet(make_run):
    """A run without evaluations: 10 measured steps after 2 of warm-up."""

    def make(*args, **fields):
        run = make_run(*args, **({"steps": 10, "warmup_steps": 2} | fields))
        (run.path / "eval.csv").unlink()
        return run

    return make


def test_the_phases_of_alternating_ranks_add_up_to_the_time_that_passed(quiet):
    merged = merge_run(rewrite(quiet(), alternating))
    assert merged.measured.select(pl.sum_horizontal(f"{phase}_mean" for phase in PHASES)).sum().item() == pytest.approx(
        merged.time_ms
    )


def test_any_runs_time_is_that_of_a_plain_computation():
    rng = np.random.default_rng(3)
    numbers = np.flatnonzero(rng.random(60) < 0.8)
    measured = numbers >= 6
    steps = number_blocks(pl.DataFrame({"step": numbers, "warmup": ~measured}), restarts=(20, 41))
    ranks = [pl.DataFrame({"step": np.arange(60), "step_time_ms": rng.gamma(9, 9, 60)}) for _ in range(3)]
    groups = [[]]
    for number in numbers[measured]:
        if groups[-1] and (number != groups[-1][-1] + 1 or groups[-1][-1] in (20, 41)):
            groups.append([])
        groups[-1].append(int(number))
    expected = [max(rows["step_time_ms"].gather(group).sum() for rows in ranks) for group in groups]
    found = block_times(ranks, steps)
    assert found["steps"].to_list() == [len(group) for group in groups]
    assert found["time_ms"].to_list() == pytest.approx(expected)


def test_without_spread_a_difference_is_certain_and_none_is_none() -> None:
    assert (p_value(0.0, 0.0, 3.0), p_value(-0.1, 0.0, 3.0)) == (1.0, 0.0)
    assert 0 < p_value(0.1, 0.1, 3.0) < 1


def test_steps_that_follow_from_each_other_are_worth_fewer() -> None:
    assert _effective(np.array([])) == 0.0
    rng = np.random.default_rng(0)
    alone = rng.normal(size=400)
    assert _effective(np.repeat(alone[:100], 4)) < 0.5 * _effective(alone)


def test_a_turn_that_ends_ends_its_block() -> None:
    steps = pl.DataFrame({"step": [0, 1, 2, 3, 5], "warmup": [True, False, False, False, False]})
    assert number_blocks(steps)["block"].to_list() == [0, 1, 1, 1, 2]
    assert number_blocks(steps, restarts=[2])["block"].to_list() == [0, 1, 1, 2, 3]
    turns = steps.with_columns(turn=pl.Series([0, 0, 1, 1, 1]))
    assert number_blocks(turns)["block"].to_list() == [0, 1, 2, 2, 3]
