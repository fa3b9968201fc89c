"""Rank files read, merged, and made steps and blocks of."""

from __future__ import annotations

import resource
from contextlib import ExitStack

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from dynbench.analysis import steps as steps_module
from dynbench.analysis.merge import merge_run
from dynbench.analysis.rank_files import read_rank_file
from dynbench.analysis.steps import PHASES, block_times, number_blocks, step_table
from dynbench.analysis.summary import summary_of
from dynbench.errors import RecordError, StorageError, user_error
from dynbench.runs.records import Column, read_columns, write_columns


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


def test_merged_files_hold_the_same_rows(make_run):
    run = make_run("partition", steps=20, extra={"bytes_wire": 1000})
    merged = merge_run(run)
    parquet = pl.read_parquet(run.path / "merged_metrics.parquet")
    text = pl.read_csv(run.path / "merged_metrics.csv", schema_overrides={"work_hash": pl.UInt64})
    assert parquet.height == merged.rows == 60
    assert_frame_equal(parquet, text, check_dtypes=False, rel_tol=1e-6)
    waits = parquet.group_by("step").agg(least=pl.col("wait_ms").min(), most=pl.col("wait_ms").max())
    assert waits["least"].abs().max() < 1e-5 and waits["most"].min() > 0


def test_steps_without_all_ranks_do_not_count(make_run):
    run = make_run(steps=10, warmup_steps=2)
    path = run.rank_file(1)
    path.write_bytes(path.read_bytes()[:-20])
    merged = merge_run(run)
    assert (merged.steps.height, merged.incomplete_steps, merged.torn_lines) == (11, 1, 1)
    assert merged.lacks == ("9 of 10 measured steps",)
    written = pl.read_parquet(run.path / "merged_metrics.parquet")
    assert written.filter(pl.col("step") == 11)["step_time_max_ms"].to_list() == [None]


@pytest.mark.parametrize("foreign", [False, True])
def test_what_is_there_of_a_run_with_missing_ranks_is_used(make_run, foreign):
    run = make_run(world_size=4, ranks_written=3)
    if foreign:
        run.rank_file(3).write_text("epoch,loss\n1,0.5\n")
    merged = merge_run(run)
    assert any("rank_3.csv is of another version" in note for note in merged.notes) == foreign
    assert (merged.ranks, merged.missing_ranks, merged.measured.height) == ((0, 1, 2), (3,), 40)
    assert merged.lacks == ("1 of 4 ranks have no rows (rank 3)",)


def test_a_run_without_a_row_is_refused_with_what_was_found(make_run):
    run = make_run(steps_written=0)
    with pytest.raises(RecordError, match=r"rank_0.csv has no row; rank_1.csv has no row"):
        merge_run(run)
    for path in run.ranks_dir.iterdir():
        path.unlink()
    with pytest.raises(RecordError, match="no rank files in"):
        merge_run(run)
    run.update(status="running")
    with pytest.raises(RecordError, match=r"\(running\) has no row yet"):
        merge_run(run)


def test_a_full_disk_is_told_as_what_it_is(make_run, monkeypatch):
    """polars may say of a full disk that its own file is wrong."""

    def sink(self, path, **_):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limit)
        raise pl.exceptions.ComputeError("parquet: File out of specification")

    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", sink)
    run = make_run()
    with ExitStack() as stack, pytest.raises(OSError, match="File too large") as caught:
        merge_run(run)
    assert isinstance(user_error(caught.value), StorageError) and "merged_metrics.parquet" in str(caught.value)
    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", lambda self, path, **_: pl.DataFrame().select("no such column"))
    with pytest.raises(pl.exceptions.PolarsError):
        merge_run(run)


@pytest.fixture
def rank_file(make_run):
    """Seven rows of rank 1."""
    return make_run(steps=5, warmup_steps=2).rank_file(1)


@pytest.mark.parametrize("cut", [1, 5, 40, 100, "3,1", "x" * 30, "3,1,0,static,garbage" + ",1" * 17, "\x00" * 50])
def test_a_torn_last_line_and_an_unreadable_one_in_the_middle_are_dropped_and_counted(rank_file, cut):
    """So much of the last line, or what stands in place of another; steps that stand twice count once."""
    lines = rank_file.read_text().splitlines(keepends=True)
    at = -1 if isinstance(cut, int) else 4
    repeated, lines[at] = lines[2], lines[-1][:-cut] if isinstance(cut, int) else f"{cut}\n"
    rank_file.write_text("".join([*lines[:3], repeated, *lines[3:]]))
    found = read_rank_file(1, rank_file)
    left = [step for step in range(7) if step != (6 if at == -1 else 3)]
    assert (found.rows["step"].to_list(), found.torn_lines) == (left, 1)
    assert "1 rows dropped" in found.note


@pytest.mark.parametrize(
    ("rank", "content", "note"),
    [
        (1, "", "is empty"),
        (1, "step,rank,war", "is empty"),
        (1, "step,rank\n0,1\n", "another version: it lacks warmup"),
        (0, None, "holds rows of rank 1"),
    ],
)
def test_a_file_without_rows_of_the_rank_is_named(rank_file, rank, content, note):
    if content is not None:
        rank_file.write_text(content)
    found = read_rank_file(rank, rank_file)
    assert found.rows is None
    assert note in found.note


def reread(rank_file, *without, **columns):
    """Rows of the file with columns left out and others added, none of which is lost or noted."""
    pl.read_csv(rank_file).drop(without).with_columns(**columns).write_csv(rank_file)
    found = read_rank_file(1, rank_file)
    assert (found.rows.height, found.torn_lines, found.note) == (7, 0, None)
    return found.rows


def test_a_loss_that_is_not_a_number_is_no_torn_line(rank_file):
    loss = pl.when(pl.col("step") == 1).then(float("nan")).otherwise("loss")
    assert reread(rank_file, loss=loss)["loss"].is_nan().sum() == 1


def test_declared_columns_are_kept_with_their_types(rank_file):
    kinds = {"rounds": "integer", "codec": "text", "ratio": "number", "empty": "number"}
    columns = [Column(name, kind, "ms", "What it is.") for name, kind in kinds.items()]
    write_columns(rank_file.parent, columns)
    known = {"rounds": 2**40, "codec": "topk", "ratio": 0.25, "empty": None}
    rows = reread(rank_file, **{name: pl.lit(value) for name, value in known.items()}, unheard_of=pl.lit(1.5))
    assert rows.row(0, named=True).items() >= (known | {"unheard_of": 1.5}).items()
    assert rows["empty"].null_count() == 7
    assert read_columns(rank_file.parent) == {column.name: column for column in columns}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"columns": [{"name": "a"}]}'])
def test_a_declaration_that_cannot_be_read_is_warned_of_and_the_rows_stay(rank_file, caplog, content):
    (rank_file.parent / "columns.json").write_text(content)
    assert reread(rank_file, rounds=pl.lit(3))["rounds"].to_list() == [3.0] * 7
    assert "columns.json cannot be read" in caplog.text


def test_columns_that_earlier_versions_did_not_record_are_null_and_batches_padded(rank_file):
    names = ("real_tokens2", "padded_tokens2")
    rows = reread(rank_file, "layout", *names)
    assert [(rows[name].dtype, rows[name].null_count()) for name in names] == [(pl.Int64(), 7)] * 2
    assert set(rows["layout"]) == {"padded"}


def test_the_phases_of_alternating_ranks_add_up_to_the_time_that_passed(make_run):
    """Two ranks that end their steps in turn 10 ms late: every step is 110 ms on one of them, 100 ms pass per step."""

    def alternating(row):
        return {"step_time_ms": 110.0 if row.step % 2 == row.rank else 90.0}

    run = make_run(steps=10, warmup_steps=2, row=alternating)
    (run.path / "eval.csv").unlink()
    merged = merge_run(run)
    phases = merged.measured.select(pl.sum_horizontal(f"{phase}_mean" for phase in PHASES))
    assert phases.sum().item() == pytest.approx(merged.time_ms)


def test_a_turn_that_ends_a_hole_and_a_restart_end_a_block_which_lasts_as_long_as_on_its_slowest_rank() -> None:
    steps = pl.DataFrame({"step": [0, 1, 2, 3, 5], "warmup": [True, False, False, False, False]})
    turns, restarted = steps.with_columns(turn=pl.Series([0, 0, 1, 1, 1])), number_blocks(steps, restarts=(2, 9))
    assert number_blocks(steps)["block"].to_list() == [0, 1, 1, 1, 2]
    assert number_blocks(turns)["block"].to_list() == [0, 1, 2, 2, 3]
    assert restarted["block"].to_list() == [0, 1, 1, 2, 3]
    times = [9.0, 1.0, 2.0, 4.0, 50.0, 8.0], [9.0, 3.0, 1.0, 2.0, 50.0, 9.0]
    ranks = [pl.DataFrame({"step": range(6), "step_time_ms": of_rank}) for of_rank in times]
    assert block_times(ranks, restarted).rows() == [(1, 1, 2, 4.0), (2, 3, 1, 4.0), (3, 5, 1, 9.0)]


@pytest.mark.parametrize("left", [(0, 1, 2), (0, 2)])
@pytest.mark.parametrize("asked", ["launch.nproc=1", "launch.nproc=auto"])
def test_ranks_that_have_rows_are_ranks_of_the_run_whatever_is_asked_for(make_run, left, asked):
    run = make_run(world_size=3, overrides=(asked,))
    for rank in {0, 1, 2} - {*left}:
        run.rank_file(rank).unlink()
    run.rank_file(10**9).write_bytes(run.rank_file(0).read_bytes())  # of no launch
    merged = merge_run(run)
    assert (merged.world_size, merged.ranks, merged.missing_ranks) == (3, left, tuple({0, 1, 2} - {*left}))
    assert summary_of(merged)["waste"]["s"] > 1
