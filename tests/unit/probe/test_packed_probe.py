"""A probe of packed rows: what it tries, what its capacities mean in tokens, and who may not use it."""

from __future__ import annotations

import numpy as np
import pytest
from probes import make_probe, probe_record

from dynbench.config.load import load_config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.engine.planning import build_cost, build_problem, probe_capacity
from dynbench.errors import ConfigError
from dynbench.probe.predict import predicted_speedups
from dynbench.probe.shapes import shaped_batch
from dynbench.probe.soak import planned_shapes
from dynbench.probe.trial import TrialStep
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED, PackedCapacity
from dynbench.schedule.planner import Planner
from dynbench.workloads.micro_batch import CPU
from dynbench.workloads.registry import build_workload

PACKED = ("workload.layout=packed", "workload.max_length=64", "workload.subset=200", "train.global_batch=16")
MACHINE = Machine(cores=2, gpus=0, bf16=False)


def test_a_trial_is_a_row_of_equal_samples_without_padding() -> None:
    config = load_config(None, [*PACKED, "train.learning_rate=1e-4", "train.precision=fp32"])
    workload = build_workload(config)
    batch = shaped_batch(workload, 3, 40, CPU)
    assert batch.inputs["boundaries"].lengths == (40, 40, 40) and batch.tokens == 120
    assert len(TrialStep(config, workload, CPU).timed(3, 40, 2)) == 2


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
    asked = load_config(None, [*PACKED, "schedule.policy=partition", "probe.run=probed", "launch.nproc=2"])
    config = resolve(asked, MACHINE, store).config
    assert build_cost(config, 1, tmp_path).cost_packed(30, 500) == 2.0 + 0.5 * 30 + 0.01 * 500
    problem = build_problem(config, np.full(64, 40), 2, 1, tmp_path)
    assert problem.packed and problem.capacity.limit(0, 40) == 40 * 64
    speedups = predicted_speedups(problem, 0.0)
    assert speedups["partition"] == pytest.approx(1.0) and speedups["window"] is speedups["prefix"] is None


@pytest.mark.parametrize(("ours", "theirs"), [("packed", "padded"), ("padded", "packed")])
def test_a_probe_of_the_other_layout_is_refused(tmp_path, ours: str, theirs: str) -> None:
    store = RunStore(tmp_path)
    settings = [setting for setting in PACKED if "layout" not in setting]
    make_probe(store, *settings, f"workload.layout={theirs}")
    asked = load_config(None, [*settings, f"workload.layout={ours}", "probe.run=probed", "launch.nproc=2"])
    with pytest.raises(ConfigError, match=rf"workload\.layout: '{ours}', but probe.run .* was made with '{theirs}'"):
        resolve(asked, MACHINE, store)
