"""512 rank files of some steps, and two of a million, written as ranks write them or in one go, and analyzed apart."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dynbench.analysis.rank_files import find_rank_files, read_rank_file
from dynbench.engine.launching.progress import ProgressReader
from dynbench.runs.records import RowWriter, StepRow

RANKS, WARMUP = 512, 10

MEASURE = """
import json, sys, time
start = time.monotonic()
from dynbench.cli.main import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:  # getrusage counts what the parent had before the exec
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
print(json.dumps({"code": code, "seconds": time.monotonic() - start, "peak_bytes": peak}), file=sys.stderr)
"""


def analyzed(store, make_run, steps):
    """What the analysis took, what it printed, and the run's folder."""
    four = {"world_size": 4, "global_batch": 80, "steps": steps - WARMUP, "warmup_steps": WARMUP}
    run = make_run("partition", name="big", **four, overrides=(f"launch.nproc={RANKS}", "train.global_batch=11000"))
    texts = [re.sub(r"(?m)^(\d+),\d+,", r"\1,@,", run.rank_file(rank).read_text()) for rank in range(4)]
    for rank in range(RANKS):
        run.rank_file(rank).write_text(texts[rank % 4].replace(",@,", f",{rank},"))
    command = [sys.executable, "-c", MEASURE, "analyze", "big", "--results", str(store.root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stderr.splitlines()[-1])
    print(f"{RANKS * steps:,} rows: {measured['seconds']:.1f} s, {measured['peak_bytes'] / 2**30:.2f} GiB")
    return measured, json.loads(done.stdout), run.path


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "gib"), [(2_000, 1), pytest.param(20_000, 4, marks=pytest.mark.matrix)])
def test_the_rows_of_512_ranks_take_little_memory_and_no_csv(store, make_run, steps, gib):
    measured, report, path = analyzed(store, make_run, steps)
    assert measured["code"] == 0
    assert report["runs"][0]["summary"]["rows"] == RANKS * steps
    assert (path / "merged_metrics.parquet").is_file()
    assert not (path / "merged_metrics.csv").exists()
    assert len(report["figures"]) == 5
    assert measured["peak_bytes"] < gib * 2**30
    shutil.rmtree(path)


@pytest.mark.slow
def test_512_ranks_write_at_once_and_are_followed_with_no_file_left_open(store):
    run = store.create("train", "partition")
    row = StepRow(**dict.fromkeys(StepRow.__annotations__, 1))
    reader = ProgressReader([run], [range(RANKS)], 3, None)
    with ExitStack() as open_files:
        writers = [open_files.enter_context(RowWriter(run.rank_file(rank))) for rank in range(RANKS)]
        before = len(list(Path("/proc/self/fd").iterdir()))
        for step in range(3):
            for rank, writer in enumerate(writers):
                assert rank < RANKS - 1 or reader.look().steps_done == step, "one has not recorded it"
                writer.write(replace(row, step=step, rank=rank))
        assert reader.look().steps_done == 3
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    found = {rank: read_rank_file(rank, file) for rank, file in find_rank_files(run.ranks_dir).items()}
    assert list(found) == list(range(RANKS))
    assert {file.rows.height for file in found.values()} == {3}


@pytest.mark.clock
def test_ten_million_rows_take_under_a_minute(store, make_run):
    measured, _, path = analyzed(store, make_run, 20_000)
    assert measured["seconds"] < 60
    shutil.rmtree(path)
