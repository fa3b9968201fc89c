"""512 rank files of some steps, and two of a million, written as ranks write them or in one go, and analyzed apart."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynbench.analysis.rank_files import find_rank_files, read_rank_file
from dynbench.engine.launching.progress import ProgressReader
from dynbench.runs.records import COLUMNS, RowWriter, StepRow

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


def rank_text(rng, steps):
    """The rows of one rank with `@` for its number."""
    compute = rng.gamma(20, 5, steps).round(4)
    sync = rng.gamma(5, 2, steps).round(4)
    columns = {
        "step": range(steps),
        "rank": ["@"] * steps,
        "warmup": [int(step < WARMUP) for step in range(steps)],
        "policy": ["partition"] * steps,
        "layout": ["padded"] * steps,
        "local_batch": rng.integers(4, 40, steps),
        "micro_batches": [1] * steps,
        "max_seq_len_in_batch": rng.integers(10, 60, steps),
        "real_tokens": rng.integers(300, 600, steps),
        "padded_tokens": rng.integers(600, 1000, steps),
        "real_tokens2": rng.integers(9_000, 20_000, steps),
        "padded_tokens2": rng.integers(20_000, 60_000, steps),
        "plan_ms": rng.random(steps).round(4),
        "data_ms": rng.random(steps).round(4),
        "forward_ms": (compute * 0.3).round(4),
        "backward_ms": (compute * 0.7).round(4),
        "sync_ms": sync,
        "optimizer_ms": rng.random(steps).round(4),
        "compute_ms": compute,
        "step_time_ms": (compute + sync + 2).round(4),
        "peak_mem_mb": (500 + rng.random(steps)).round(3),
        "reserved_mem_mb": [600.0] * steps,
        "loss": rng.random(steps),
        "weight": [1100] * steps,
        "work_hash": rng.integers(0, 2**63, steps),
        "skipped": [0] * steps,
    }
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    return "\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]) + "\n"


def analyzed(store, make_run, steps, ranks=RANKS):
    """What the analysis took, what it printed, and the run's folder."""
    run = make_run(
        "partition",
        name="big",
        overrides=(f"launch.nproc={ranks}", f"train.steps={steps - WARMUP}", "train.global_batch=11000"),
    )
    rng = np.random.default_rng(0)
    texts = [rank_text(rng, steps) for _ in range(min(ranks, 4))]
    for rank in range(ranks):
        run.rank_file(rank).write_text(texts[rank % 4].replace(",@,", f",{rank},"))
    command = [sys.executable, "-c", MEASURE, "analyze", "big", "--results", str(store.root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stderr.splitlines()[-1])
    print(f"{ranks * steps:,} rows: {measured['seconds']:.1f} s, {measured['peak_bytes'] / 2**30:.2f} GiB")
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


def test_512_ranks_write_at_once_and_are_followed_with_no_file_left_open(store):
    run = store.create("train", "partition")
    row = StepRow(**dict.fromkeys(StepRow.__annotations__, 1))
    reader = ProgressReader([run], [range(RANKS)], 3, None)
    with ExitStack() as open_files:
        writers = [open_files.enter_context(RowWriter(run.rank_file(rank))) for rank in range(RANKS)]
        before = len(list(Path("/proc/self/fd").iterdir()))
        for step in range(3):
            for rank, writer in enumerate(writers):
                writer.write(replace(row, step=step, rank=rank))
                if rank == RANKS - 2:
                    assert reader.look().steps_done == step, "one has not recorded it"
        assert reader.look().steps_done == 3
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    found = {rank: read_rank_file(rank, file) for rank, file in find_rank_files(run.ranks_dir).items()}
    assert list(found) == list(range(RANKS))
    assert all(file.rows["step"].to_list() == [0, 1, 2] and not file.torn_lines for file in found.values())


@pytest.mark.clock
def test_ten_million_rows_take_under_a_minute(store, make_run):
    measured, _, path = analyzed(store, make_run, 20_000)
    assert measured["seconds"] < 60
    shutil.rmtree(path)
