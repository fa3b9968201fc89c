"""What a trial runs is what training runs, padded or packed; within which limits, and what plans read of it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own import NAME
from probes import make_probe, probe_record, resolved

from dynbench.config.layers import load_config
from dynbench.engine.planning import build_cost, build_problem, probe_capacity
from dynbench.engine.rank.memory import MemoryNow
from dynbench.errors import NothingFits, UsageError
from dynbench.kernels.packed_attention import Boundaries, cheaper_arrangement, most_demanding
from dynbench.probe import trial
from dynbench.probe.capacity import planned_shapes
from dynbench.probe.children import served_mb
from dynbench.probe.fit import predicted_speedups
from dynbench.probe.prober import _length_grid, _within
from dynbench.probe.trial import TrialStep
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED, PackedCapacity
from dynbench.schedule.policy import Planner
from dynbench.workloads.batches import CPU
from dynbench.workloads.registry import build_workload


def test_a_workload_of_the_users_own_is_tried_at_any_shape():
    config = resolved(f"workload.name={NAME}", "workload.max_length=24").config
    step = TrialStep(config, build_workload(config), CPU)
    assert step.fits(5, 40)[0] and len(step.timed(2, 8, 2)) == 2


@pytest.mark.parametrize(
    ("longest", "multiple", "grid"),
    [
        (256, 1, (32, 64, 128, 256)),
        (100, 1, (32, 64, 100)),
        (100, 8, (32, 64, 104)),
        (20, 1, (20,)),
        (500, 48, (32, 64, 128, 256, 512)),  # 528, but for the model's positions
    ],
)
def test_the_grid_ends_where_padding_ends(longest, multiple, grid):
    def lengths(*given: int) -> tuple[int, ...]:
        settings = (f"workload.max_length={longest}", f"workload.pad_to_multiple_of={multiple}")
        chosen = [f"probe.lengths={list(given)}"] if given else []
        return _within(_length_grid(load_config(None, [*settings, *chosen])), 512)

    assert lengths() == grid and lengths(20, 16, 20) == (16, 20)
    with pytest.raises(UsageError, match=r"above workload\.max_length"):
        lengths(-(-longest // multiple) * multiple + 1)


@pytest.mark.parametrize(("limit_mb", "fits"), [(150.0, True), (99.0, False), (None, True)])
def test_a_trial_fits_when_what_training_reports_is_within_the_limit(monkeypatch, limit_mb, fits):
    limited, limit_bytes = [], limit_mb and int(limit_mb * 1e6)
    monkeypatch.setattr(trial, "limit_process", limited.append)
    memory = SimpleNamespace(reset=lambda: None, now=lambda: MemoryNow(100.0, None))
    step = SimpleNamespace(limit_bytes=limit_bytes, limit_mb=limit_mb, memory=memory, step=lambda *_, **__: None)
    assert TrialStep.fits(step, 4, 32) == (fits, 100.0)
    assert limited == ([] if limit_mb is None else [limit_bytes])


@pytest.mark.slow
def test_the_limit_is_of_resident_memory_libraries_included():
    """A process of its own: what is refused there is told by its peak."""
    code = (
        "import numpy as np; from pathlib import Path;"
        "from dynbench.engine.rank.memory_limit import limit_process, resident_bytes;"
        "limit = resident_bytes() + 80_000_000; limit_process(limit); kept = []\n"
        "try:\n  while True: kept.append(np.ones(500_000))\n"
        "except MemoryError: pass\n"
        "peak = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith('VmHWM'))\n"
        "print(limit, int(peak.split()[1]) * 1024, len(kept) * 4_000_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limit, peak, kept = map(int, done.stdout.split())
    assert 0.9 * limit < peak <= 1.02 * limit
    assert kept > 60_000_000


def test_a_server_without_room_for_what_it_holds_ends_the_probe():
    config = load_config(None, ["sync.name=ps"])
    assert served_mb(config, 100.0, 500.0) == 500.0
    assert served_mb(config, 100.0, None) == 500.0
    assert served_mb(load_config(None, []), 100.0, 1.0) is None
    with pytest.raises(NothingFits, match=r"a server of sync.name 'ps' holds 500 MB .* more than the 499 MB"):
        served_mb(config, 100.0, 499.0)


PACKED = (
    *("workload.layout=packed", "workload.size=small", "workload.max_length=64", "workload.subset=200"),
    "train.global_batch=16",
)


@pytest.mark.parametrize("single", [False, True])
@settings(max_examples=200)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_no_row_takes_more_places_than_the_one_that_is_tried(single, lengths):
    """Of as many tokens and as long a sample, as on a GPU without a kernel that takes boundaries, or dropout.

    A capacity of a single sample is tried as shorter ones: its tokens may hold any samples that are no longer, which
    take up to twice the places when they are re-padded.
    """
    gpu, longest = torch.device("cuda"), sum(lengths) if single else max(lengths)
    samples = 1 if single else max(2, -(-sum(lengths) // longest))
    tried = most_demanding(samples, longest, gpu)
    assert sum(tried) == samples * longest and (single or max(tried) == longest) and min(tried) > 0
    assert cheaper_arrangement(Boundaries(tried, gpu), 64) == "repadded"
    if cheaper_arrangement(Boundaries(tuple(lengths), gpu), 64) == "repadded":
        assert len(lengths) * max(lengths) <= len(tried) * max(tried) + 2 * single
    assert most_demanding(samples, longest, CPU) == (longest,) * samples


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_what_is_tried_for_memory_is_the_row_that_needs_most_and_what_is_timed_is_equal(layout, monkeypatch):
    """GPUs' choice, forced on a CPU: 8 samples of 40 tokens are tried as 16, the longest of them 40."""
    config = resolved(*PACKED, f"workload.layout={layout}").config
    workload, seen = build_workload(config), []
    monkeypatch.setattr(trial, "most_demanding", lambda n, length, _: most_demanding(n, length, torch.device("cuda")))
    step, collate = TrialStep(config, workload, CPU), workload.collate
    monkeypatch.setattr(
        workload,
        "collate",
        lambda data, ids, width: seen.append([width, *data.lengths[ids]]) or collate(data, ids, width),
    )
    assert step.fits(8, 40)[0]
    step.timed(8, 40, 1)
    (width, *tried), _, (timed_width, *timed), _ = seen
    assert width == timed_width == 40
    if layout == "padded":
        assert tried == timed == [39] * 8, "so that attention keeps its mask"
    else:
        assert (len(tried), max(tried), sum(tried)) == (16, 40, 320) and timed == [40] * 8


def test_the_soak_replays_rows_of_as_many_tokens_and_as_long_a_sample():
    config = resolved(*PACKED, "schedule.policy=partition").config
    problem = build_problem(config, np.arange(1, 201) % 60 + 2, 2, 1)
    planner, shapes = Planner("partition", problem), planned_shapes(problem, 5)
    for step in range(5):
        for rank, share in enumerate(planner.plan(step).shares):
            (row,), (n, length) = share, shapes[rank][step]
            assert length == problem.lengths[row].max() and (n - 1) * length < problem.lengths[row].sum() <= n * length


def test_capacities_are_tokens_of_a_row_by_its_longest_sample():
    record = probe_record(*PACKED, tables=[[(16, None), (32, 10), (64, 4)]] * 2)
    capacity = probe_capacity(record, 2, 1)
    assert isinstance(capacity, PackedCapacity)
    assert [capacity.limit(0, length) for length in (9, 16, 17, 32, 33, 64, 65)] == [
        *(UNLIMITED, UNLIMITED, 320, 320, 256, 256, 0)
    ]


def test_plans_price_a_row_with_the_fit(tmp_path):
    cost = {"alpha_ms": 2.0, "beta_ms_per_token": 0.5, "gamma_ms_per_token2": 0.01, "heldout": {}}
    store = RunStore(tmp_path)
    make_probe(store, *PACKED, cost_model=cost)
    config = resolved(*PACKED, "schedule.policy=partition", "probe.run=probed", "launch.nproc=2", store=store).config
    assert build_cost(config, 1, tmp_path).cost_packed(30, 500) == 2.0 + 0.5 * 30 + 0.01 * 500
    problem = build_problem(config, np.full(64, 40), 2, 1, tmp_path)
    assert problem.packed and problem.capacity.limit(0, 40) == 40 * 64
    speedups = predicted_speedups(problem, 0.0)
    assert speedups["partition"] == pytest.approx(1.0) and speedups["window"] is speedups["prefix"] is None
