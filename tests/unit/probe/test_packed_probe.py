"""A probe of packed rows: what it tries, what its capacities mean in tokens, and who may not use it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import make_probe, probe_record, resolved

from dynbench.config.layers import load_config
from dynbench.engine.planning import build_cost, build_problem, probe_capacity
from dynbench.kernels.packed_attention import Boundaries, cheaper_arrangement, most_demanding
from dynbench.probe import trial
from dynbench.probe.capacity import planned_shapes
from dynbench.probe.fit import predicted_speedups
from dynbench.probe.trial import TrialStep, shaped_batch
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED, PackedCapacity
from dynbench.schedule.policy import Planner
from dynbench.workloads.batches import CPU
from dynbench.workloads.registry import build_workload

PACKED = (
    *("workload.layout=packed", "workload.size=small", "workload.max_length=64", "workload.subset=200"),
    "train.global_batch=16",
)
RESOLVED = ("workload.pad_to_multiple_of=1",)


def test_a_trial_is_a_row_of_equal_samples_without_padding() -> None:
    config = load_config(None, [*PACKED, "train.learning_rate=1e-4", "train.precision=fp32", *RESOLVED])
    workload = build_workload(config)
    batch = shaped_batch(workload, 3, 40, CPU)
    assert batch.inputs["boundaries"].lengths == (40, 40, 40) and batch.tokens == 120
    assert len(TrialStep(config, workload, CPU).timed(3, 40, 2)) == 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_no_row_of_as_many_tokens_and_as_long_a_sample_is_padded_to_more_than_the_one_that_is_tried(lengths) -> None:
    """As on a GPU without a kernel that takes boundaries, or where none takes dropout."""
    gpu, longest = torch.device("cuda"), max(lengths)
    samples = max(2, -(-sum(lengths) // longest))
    tried = most_demanding(samples, longest, gpu)
    assert max(tried) == longest and sum(tried) == samples * longest and min(tried) > 0
    assert cheaper_arrangement(Boundaries(tried, gpu), 64) == "repadded"
    if cheaper_arrangement(Boundaries(tuple(lengths), gpu), 64) == "repadded":
        assert len(lengths) * longest <= len(tried) * longest
    assert most_demanding(samples, longest, CPU) == (longest,) * samples


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_a_capacity_of_one_sample_is_tried_as_shorter_ones_in_more_places(lengths) -> None:
    """Its tokens may hold any samples that are no longer, which take up to twice the places when they are re-padded."""
    gpu, tokens = torch.device("cuda"), sum(lengths)
    tried = most_demanding(1, tokens, gpu)
    assert sum(tried) == tokens and cheaper_arrangement(Boundaries(tried, gpu), 64) == "repadded"
    if cheaper_arrangement(Boundaries(tuple(lengths), gpu), 64) == "repadded":
        assert len(lengths) * max(lengths) <= len(tried) * max(tried) + 2
    assert most_demanding(1, tokens, CPU) == (tokens,)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_what_is_tried_for_memory_is_the_row_that_needs_most_and_what_is_timed_is_equal(layout, monkeypatch) -> None:
    """GPUs' choice, forced on a CPU: 8 samples of 40 tokens are tried as 16, the longest of them 40."""
    changed = [*PACKED, f"workload.layout={layout}", "train.learning_rate=1e-4", "train.precision=fp32", *RESOLVED]
    config = load_config(None, changed)
    workload, seen = build_workload(config), []
    monkeypatch.setattr(trial, "most_demanding", lambda n, length, _: most_demanding(n, length, torch.device("cuda")))
    step = TrialStep(config, workload, CPU)
    collate = workload.collate
    monkeypatch.setattr(workload, "collate", lambda data, ids, width: seen.append(data.lengths[ids]) or collate(
        data, ids, width
    ))  # fmt: skip
    assert step.fits(8, 40)[0]
    step.timed(8, 40, 1)
    tried, _, timed, _ = (lengths.tolist() for lengths in seen)
    if layout == "padded":
        assert tried == timed == [39] * 8
    else:
        assert (len(tried), max(tried), sum(tried)) == (16, 40, 320) and timed == [40] * 8


def test_the_soak_replays_rows_of_as_many_tokens_and_as_long_a_sample() -> None:
    config = load_config(None, [*PACKED, "schedule.policy=partition"])
    problem = build_problem(config, np.arange(1, 201) % 60 + 2, 2, 1)
    planner, shapes = Planner("partition", problem), planned_shapes(problem, 5)
    for step in range(5):
        for rank, share in enumerate(planner.plan(step).shares):
            (row,), (n, length) = share, shapes[rank][step]
            assert length == problem.lengths[row].max() and (n - 1) * length < problem.lengths[row].sum() <= n * length


def test_capacities_are_tokens_of_a_row_by_its_longest_sample() -> None:
    record = probe_record(*PACKED, tables=[[(16, None), (32, 10), (64, 4)]] * 2)
    capacity = probe_capacity(record, 2, 1)
    assert isinstance(capacity, PackedCapacity)
    assert [capacity.limit(0, length) for length in (9, 16, 17, 32, 33, 64, 65)] == [
        *(UNLIMITED, UNLIMITED, 320, 320, 256, 256, 0)
    ]


def test_plans_price_a_row_with_the_fit(tmp_path) -> None:
    cost = {"alpha_ms": 2.0, "beta_ms_per_token": 0.5, "gamma_ms_per_token2": 0.01, "heldout": {}}
    store = RunStore(tmp_path)
    make_probe(store, *PACKED, cost_model=cost)
    config = resolved(*PACKED, "schedule.policy=partition", "probe.run=probed", "launch.nproc=2", store=store).config
    assert build_cost(config, 1, tmp_path).cost_packed(30, 500) == 2.0 + 0.5 * 30 + 0.01 * 500
    problem = build_problem(config, np.full(64, 40), 2, 1, tmp_path)
    assert problem.packed and problem.capacity.limit(0, 40) == 40 * 64
    speedups = predicted_speedups(problem, 0.0)
    assert speedups["partition"] == pytest.approx(1.0) and speedups["window"] is speedups["prefix"] is None
