"""Plans, rows and tensors agree on how long a padded batch is, also where rounding up passes the model's positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from batches import row_of

from dynbench.config.layers import load_config
from dynbench.engine.planning import build_problem
from dynbench.engine.rank.row_builder import RowBuilder
from dynbench.plugins import POLICIES
from dynbench.probe.capacity import planned_shapes
from dynbench.probe.prober import _length_grid, _within
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.policy import Planner
from dynbench.workloads.base import Workload
from dynbench.workloads.batches import LossPart, make_micro_batch
from dynbench.workloads.registry import build_workload

POSITIONS, STEPS = 512, 4
MULTIPLE = 48
"""500 tokens are rounded up to 528."""
SETTINGS = (
    "workload.dataset=lognormal",
    "workload.max_length=500",
    f"workload.pad_to_multiple_of={MULTIPLE}",
    "train.global_batch=16",
)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return build_workload(load_config(None, SETTINGS))


@pytest.mark.parametrize("cost_type", ["tokens", "attention"])
@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if entry.in_train])
def test_plans_rows_and_tensors_agree(workload, policy, cost_type):
    if reason := POLICIES[policy].missing:
        pytest.skip(f"{policy} {reason}")
    window = ["schedule.window=2"] if policy == "window" else []
    config = load_config(None, [*SETTINGS, f"schedule.policy={policy}", f"schedule.cost_type={cost_type}", *window])
    problem = build_problem(config, workload.train.lengths, 2, MULTIPLE, positions=workload.positions)
    rows = [RowBuilder(rank, policy, "padded", problem.lengths) for rank in (0, 1)]
    planner, widths = Planner(policy, problem), []
    for step in range(STEPS):
        plan = planner.plan(step)
        planned = step_facts(plan, problem)
        for rank, share in enumerate(plan.shares):
            batches = [make_micro_batch(workload, workload.train, ids, MULTIPLE) for ids in share]
            shapes = [batch.inputs["input_ids"].shape for batch in batches]
            parts = [LossPart(b.n, b.weight, b.width, b.tokens, torch.zeros(())) for b in batches]
            row = row_of(rows[rank], step, share, parts)
            assert row.padded_tokens == planned.padded_tokens[rank] == sum(n * width for n, width in shapes)
            assert row.padded_tokens2 == sum(n * width**2 for n, width in shapes)
            assert row.real_tokens2 == (problem.lengths[np.concatenate(share)] ** 2).sum()
            assert row.max_seq_len_in_batch == max(width for _, width in shapes)
            costs = sum(float(problem.cost.cost_padded(n, width)) for n, width in shapes)
            assert planned.costs[rank] == pytest.approx(costs)
            widths += [width for _, width in shapes]
    assert max(widths) == POSITIONS and len(set(widths)) > 1


def test_a_probe_measures_the_lengths_that_plans_ask_for(workload):
    config = load_config(None, SETTINGS)
    lengths = _within(_length_grid(config), workload.positions)
    assert lengths == (32, 64, 128, 256, POSITIONS)
    problem = build_problem(config, workload.train.lengths, 2, MULTIPLE, Path("nowhere"), workload.positions)
    shapes = [shape for rank in planned_shapes(problem, STEPS) for shape in rank]
    assert max(length for _, length in shapes) == lengths[-1]
    assert np.array_equal(problem.padded_lengths.max(), POSITIONS)
