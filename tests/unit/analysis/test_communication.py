"""What communication cost: calls, profiles, steps beside one without, and compression."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from unit.analysis.conftest import Make, findings, profiled, timed, with_steps

from dynbench.analysis.communication import against_null, compression_of
from dynbench.analysis.merge import merge_run
from dynbench.analysis.rank_files import read_calls, waiting_and_transfer
from dynbench.analysis.selection import export_runs
from dynbench.analysis.summary import summarise
from dynbench.compress.compressing import COMPRESSES, ERROR_COLUMNS
from dynbench.runs.atomic import write_json
from dynbench.runs.export import open_export
from dynbench.runs.records import CALL_COLUMNS, Call, CallWriter, write_columns
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def beside(*runs: Run) -> None:
    """The runs have shared a launch."""
    for run in runs:
        env = json.loads(run.env_file.read_text())
        write_json(run.env_file, env | {"together": {"id": runs[0].id, "runs": [each.id for each in runs]}})


def test_only_the_same_without_communication_counts(make_run: Make) -> None:
    run, other = make_run("static"), make_run("partition", overrides=("sync.communicate=false",))
    beside(run, other)
    assert against_null(merge_run(run)) is None
    gone = make_run("static", overrides=("sync.communicate=false",))
    beside(run, other, gone)
    assert against_null(merge_run(run)) is not None
    for file in gone.ranks_dir.glob("*.csv"):
        file.unlink()
    assert against_null(merge_run(run)) is None, "it has no rows"


def test_an_exported_run_takes_its_like_without_communication_along(
    make_run: Make, store: RunStore, tmp_path: Path
) -> None:
    """Named alone, it still tells what a step takes beyond one without communication; its like is no run of its own."""
    run = make_run(noise=0.0, transfer_ms=6.0)
    null = make_run(noise=0.0, transfer_ms=0.0, overrides=("sync.communicate=false",))
    beside(run, null)
    export_runs([run.id], store, tmp_path / "one.zip")
    with open_export(tmp_path / "one.zip") as export:
        assert [each.id for each in export.runs] == [run.id]
        found = against_null(merge_run(export.runs[0]))
    assert found is not None and (found["run"], found["exposed_ms"]) == (null.id, pytest.approx(6.0))


MS = 10**6


def call(number: int, start_ms: float, end_ms: float) -> Call:
    return Call("all_reduce", -1, number, 1000, round(start_ms * MS), round(end_ms * MS))


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


def test_what_a_rank_has_not_kept_is_not_known(make_run: Make) -> None:
    """A rank that was killed: the last step of the others has nobody to be held against."""
    run = keep(make_run("static"), [(0, call(0, 0, 10)), (1, call(1, 20, 30))], [(0, call(0, 6, 10))])
    assert told(run) == [(0, 0, 4, 6), (0, 1, None, None), (1, 0, 4, 0)]
    run.calls_file(1).unlink()
    assert read_calls([run], range(2)) is None


@pytest.mark.parametrize("seed", range(4))
def test_against_brute_force_on_a_grid_of_milliseconds(make_run: Make, seed: int) -> None:
    """Every rank by a clock of its own."""
    rng = np.random.default_rng(seed)
    ahead = rng.integers(0, 5000, 3).tolist()
    made = []
    for step in np.repeat(range(4), rng.integers(1, 5, 4)):
        starts = rng.integers(0, 60, 3) + 1000 * step
        made.append((step, starts, starts.max() + rng.integers(0, 20, 3)))
    kept = [
        [(step, call(number, starts[rank] + by, ends[rank] + by)) for number, (step, starts, ends) in enumerate(made)]
        for rank, by in enumerate(ahead)
    ]
    rows = told(keep(make_run("static"), *kept), 3, [by * MS for by in ahead])
    assert len(rows) == 3 * 4
    for rank, step, *found in rows:
        wanted, busy = set(), set()
        for starts, ends in (times for at, *times in made if at == step):
            wanted |= {*range(starts.max(), ends[rank])}
            busy |= {*range(starts[rank], ends[rank])}
        assert found == [len(wanted), len(busy) - len(wanted)]


@pytest.mark.parametrize("line", ["1,all_reduce,-1,1,1000,25", "x,2,3,4,5,6,7,8,9", "\0" * 50, '"1,all_reduce'])
def test_a_damaged_line_is_left_out(make_run: Make, line: str) -> None:
    run = keep(make_run("static"), [(0, call(0, 0, 2))], [(0, call(0, 1, 2))])
    with run.calls_file(0).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    assert told(run) == [(0, 0, 1, 1), (1, 0, 1, 0)]


def test_calls_beyond_the_limit_are_left_out_step_by_step(make_run: Make) -> None:
    run = make_run("static")
    with CallWriter(run.calls_file(0), most=3) as writer:
        for step in range(4):
            writer.write(step, [call(2 * step, 0, 1), call(2 * step + 1, 0, 1)] if step < 2 else [call(9, 0, 1)])
    assert [line.split(",")[0] for line in run.calls_file(0).read_text().splitlines()] == [CALL_COLUMNS[0], "0", "0"]


@pytest.mark.parametrize(("profiler_ms", "wire_ms"), [(40.0, 40.0), (40.0, 43.0), (43.0, 40.0), (10.0, 20.0)])
def test_two_that_agree_or_have_little_to_tell_are_no_finding(
    make_run: Make, profiler_ms: float, wire_ms: float
) -> None:
    run = timed(merge_run(profiled(make_run(), profiler_ms)), wire_ms)
    assert "profiled_shares" not in {finding.id for finding in findings({"static": [run]})}


def test_runs_whose_rows_do_not_tell_what_passes_wait_for_have_no_phases(make_run: Make) -> None:
    profile = summarise(profiled(make_run("static"), 30.0))["profile"]
    assert isinstance(profile, dict) and profile["phase_ms"] is None


def test_the_error_of_compression_is_known_where_it_was_sampled(make_run: Make) -> None:
    """Also behind an evaluation, in a step that counts in no time."""
    run = make_run(extra=lambda row: {"compresses": 1, "grad_rel_error": 0.25 if row.step == 20 else None})
    write_columns(run.ranks_dir, [COMPRESSES, *ERROR_COLUMNS])
    found = compression_of(with_steps(merge_run(run), warmup=(pl.col("step") == 20) | pl.col("warmup")))
    assert found is not None and found["grad_rel_error"] == 0.25
