"""Ten million rows: 512 rank files of 20,000 steps, analyzed in a process of their own."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from dynbench.runs.records import COLUMNS

RANKS, STEPS, WARMUP = 512, 20_000, 10

MEASURE = """
import json, resource, sys, time
start = time.monotonic()
from dynbench.cli.main import main
code = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"code": code, "seconds": time.monotonic() - start, "peak_bytes": peak}), file=sys.stderr)
"""


def rank_text(rng):
    """The rows of one rank with `@` for its number."""
    compute = rng.gamma(20, 5, STEPS).round(4)
    sync = rng.gamma(5, 2, STEPS).round(4)
    columns = {
        "step": range(STEPS),
        "rank": ["@"] * STEPS,
        "warmup": [int(step < WARMUP) for step in range(STEPS)],
        "policy": ["partition"] * STEPS,
        "layout": ["padded"] * STEPS,
        "local_batch": rng.integers(4, 40, STEPS),
        "micro_batches": [1] * STEPS,
        "max_seq_len_in_batch": rng.integers(10, 60, STEPS),
        "real_tokens": rng.integers(300, 600, STEPS),
        "padded_tokens": rng.integers(600, 1000, STEPS),
        "plan_ms": rng.random(STEPS).round(4),
        "data_ms": rng.random(STEPS).round(4),
        "forward_ms": (compute * 0.3).round(4),
        "backward_ms": (compute * 0.7).round(4),
        "sync_ms": sync,
        "optimizer_ms": rng.random(STEPS).round(4),
        "compute_ms": compute,
        "step_time_ms": (compute + sync + 2).round(4),
        "peak_mem_mb": (500 + rng.random(STEPS)).round(3),
        "reserved_mem_mb": [600.0] * STEPS,
        "loss": rng.random(STEPS),
        "weight": [1100] * STEPS,
        "work_hash": rng.integers(0, 2**63, STEPS),
        "skipped": [0] * STEPS,
    }
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    return "\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]) + "\n"


@pytest.fixture
def analyzed(store, make_run):
    """What the analysis took and what it printed."""
    run = make_run(
        "partition",
        name="big",
        overrides=(f"launch.nproc={RANKS}", f"train.steps={STEPS - WARMUP}", "train.global_batch=11000"),
    )
    rng = np.random.default_rng(0)
    texts = [rank_text(rng) for _ in range(4)]
    for rank in range(RANKS):
        run.rank_file(rank).write_text(texts[rank % 4].replace(",@,", f",{rank},"))
    command = [sys.executable, "-c", MEASURE, "analyze", "big", "--results", str(store.root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stderr.splitlines()[-1])
    print(f"10 million rows: {measured['seconds']:.1f} s, {measured['peak_bytes'] / 2**30:.2f} GiB")
    yield measured, json.loads(done.stdout), run.path
    shutil.rmtree(run.path)


@pytest.mark.slow
def test_ten_million_rows_take_4_gib_and_no_csv(analyzed):
    measured, report, path = analyzed
    assert measured["code"] == 0
    assert report["runs"][0]["summary"]["rows"] == RANKS * STEPS
    assert (path / "merged_metrics.parquet").is_file()
    assert not (path / "merged_metrics.csv").exists()
    assert len(report["figures"]) == 5
    assert measured["peak_bytes"] < 4 * 2**30


@pytest.mark.clock
def test_ten_million_rows_take_under_a_minute(analyzed):
    measured, _, _ = analyzed
    assert measured["seconds"] < 60
