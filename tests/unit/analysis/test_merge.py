import csv
import resource
from collections import defaultdict
from contextlib import ExitStack

import numpy as np
import polars as pl
import pytest

from dynbench.analysis.merge import merge_run
from dynbench.errors import RecordError, StorageError, told


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


def test_phases_add_up_to_the_step(make_run):
    steps = merge_run(make_run("static")).steps
    phases = [name for name in steps.columns if name.endswith("_ms_mean") and name != "step_time_ms_mean"]
    assert len(phases) == 7
    total = steps.select(pl.sum_horizontal(phases)).to_series()
    assert np.allclose(total, steps["step_time_max_ms"], rtol=1e-5)


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


def test_the_csv_copy_is_left_out_on_request_and_for_many_rows(make_run, monkeypatch):
    run = make_run("static")
    merge_run(run, csv=False)
    assert not (run.path / "merged_metrics.csv").exists()
    monkeypatch.setattr("dynbench.analysis.merge.CSV_ROWS", 10)
    merge_run(run)
    assert not (run.path / "merged_metrics.csv").exists()
    merge_run(run, csv=True)
    assert (run.path / "merged_metrics.csv").exists()


def test_a_whole_run_lacks_nothing(make_run):
    merged = merge_run(make_run("static"))
    assert (merged.lacks, merged.partial, merged.torn_lines, merged.notes) == ((), False, 0, ())


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


def test_an_interrupted_run_is_partial(make_run):
    merged = merge_run(make_run("static", status="interrupted", steps_written=30))
    assert merged.lacks == ("status is interrupted", "20 of 40 measured steps")


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
    assert isinstance(told(caught.value), StorageError) and "merged_metrics.parquet" in str(caught.value)
    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", lambda self, path, **_: pl.DataFrame().select("no such column"))
    with pytest.raises(pl.exceptions.PolarsError):
        merge_run(run)
