"""Settings reach the planning problem; plans follow the ranks' speeds, and rows and tensors the plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import row_of

from dynbench.config.layers import load_config
from dynbench.engine.planning import (
    EstimatedSpeeds,
    Planned,
    PlansAhead,
    build_problem,
    probe_speeds,
    step_plans,
)
from dynbench.engine.rank.row_builder import RowBuilder
from dynbench.errors import UsageError
from dynbench.lengths import SHIPPED
from dynbench.plugins import POLICIES
from dynbench.runs.probe_record import ProbeRecord
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.plan import FloatArray
from dynbench.schedule.policy import Planner, Problem
from dynbench.workloads.base import Workload
from dynbench.workloads.batches import LossPart, make_micro_batch
from dynbench.workloads.registry import build_workload

LENGTHS = np.random.default_rng(0).integers(2, 60, size=200)


def test_settings_reach_the_problem():
    schedule = ("window=2", "cost_type=attention", "attention_a=0.5", "capacity=[30, 40]", "speeds=[1.0, 0.5]")
    given = (f"schedule.{setting}" for setting in (*schedule, "micro_batches=2"))
    config = load_config(None, ["train.seed=3", *given])
    problem = build_problem(config, LENGTHS, 2, 8)
    assert (problem.seed, problem.window, problem.micro_batches, problem.global_batch) == (3, 2, 2, 64)
    assert (problem.cost.cost_type, problem.cost.attention_a, problem.cost.pad_to_multiple_of) == ("attention", 0.5, 8)
    assert [problem.capacity.limit(rank, 10) for rank in (0, 1)] == [30, 40]
    assert problem.relative_speeds().tolist() == [1.0, 0.5]
    assert problem.objective == "sum"
    assert build_problem(load_config(None, ["sync.name=fsdp"]), LENGTHS, 2, 8).objective == "slots"


def test_measured_cost():
    config = load_config(None, ["schedule.cost_type=measured", "schedule.cost_coefficients=[1.0, 0.5, 0.25]"])
    assert float(build_problem(config, LENGTHS, 2, 1).cost.cost(2, 4)) == 1 + 0.5 * 8 + 0.25 * 32


def test_a_probe_must_be_named():
    config = load_config(None, ["schedule.cost_type=measured", "probe.run=auto"])
    with pytest.raises(UsageError, match=r"probe\.run"):
        build_problem(config, LENGTHS, 2, 1, Path("nowhere"))


def test_a_probe_tells_speeds_where_its_ranks_differ():
    def measured(*speeds: float) -> ProbeRecord:
        return ProbeRecord.model_construct(speeds=list(speeds))

    found = probe_speeds(measured(1.0, 0.5), 2)
    assert found.tolist() == [1.0, 0.5]
    assert probe_speeds(measured(1.0, 0.95), 2) is None
    assert probe_speeds(measured(1.0, 0.5), 4) is None


def test_a_step_is_planned_and_told_of_while_the_one_before_begins():
    planned, observed, expected = [], [], []

    def share(step: int) -> Planned:
        planned.append(step)
        return (np.array([step]),), [()]

    source = SimpleNamespace(share=share, observe=lambda _, compute_ms: observed.append(compute_ms))
    plans = PlansAhead(source, lambda share: expected.append([int(ids[0]) for ids in share]), steps=4)
    for step in range(4):
        (ids,), shares = plans.share(step)
        assert (ids.tolist(), shares) == ([step], [()])
        plans.observe((), float(step))
    assert (planned, observed) == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0]), "each once, in order, none beyond the last"
    assert expected == [[0, 1], [1, 2], [2, 3]]


SPREAD_LENGTHS = np.random.default_rng(0).permutation(SHIPPED["sst2"])
ONE_SLOW = np.array([1.0, 1.0, 2.0, 1.0])
EVERY, COLD_STEPS = 10, 3


def everyone(paces: Mapping[int, float]) -> FloatArray:
    """All ranks' paces, as one process that plays them all gathers them."""
    return np.array([paces[rank] for rank in sorted(paces)])


def train(
    problem: Problem,
    file: Path,
    *,
    steps: int,
    slowdown: FloatArray = ONE_SLOW,
    overhead_ms: float = 0.0,
    noise: float = 0.0,
) -> list[float]:
    """The slowest rank's true time over the bound, step by step, planning with estimated speeds.

    A micro-batch costs `overhead_ms` and 0.1 ms per padded token; the first steps are cold.
    """
    plans = EstimatedSpeeds("partition", problem, EVERY, everyone, file)
    cost = CostModel("measured", alpha=overhead_ms, beta=0.1)
    truth = Problem(problem.lengths, problem.workers, problem.global_batch, cost=cost, speeds=1 / slowdown)
    rng, ratios = np.random.default_rng(5), []
    for step in range(steps):
        plan = plans.plan(step)
        facts = step_facts(plan, truth)
        ratios.append(facts.max_cost / facts.bound)
        measured = facts.costs * np.exp(noise * rng.standard_normal(len(slowdown))) * (5 if step < COLD_STEPS else 1)
        for rank, share in enumerate(plan.shares):
            plans.observe(rank, share, float(measured[rank]))
    return ratios


def test_the_first_estimate_finds_the_slow_rank(tmp_path):
    file = tmp_path / "speeds.csv"
    ratios = train(Problem(SPREAD_LENGTHS, 4, 64, micro_batches=4), file, steps=EVERY + 1)
    assert min(ratios[:EVERY]) > 1.5
    assert ratios[EVERY] < 1.15
    assert file.read_text() == "step,rank,speed\n10,0,1.0000\n10,1,1.0000\n10,2,0.5000\n10,3,1.0000\n"


@pytest.mark.slow
@pytest.mark.parametrize("cost", [CostModel(), CostModel("tokens_sq"), CostModel("measured", alpha=2.0, beta=0.1)])
def test_after_fifty_steps_the_slowest_rank_is_near_the_bound(tmp_path, cost):
    problem = Problem(SPREAD_LENGTHS, 4, 64, micro_batches=4, cost=cost)
    ratios = train(problem, tmp_path / "speeds.csv", steps=90, overhead_ms=0.1, noise=0.1)
    assert np.mean(ratios[50:]) < 1.15


def test_overhead_that_the_cost_model_does_not_know_shifts_work_further(tmp_path):
    file = tmp_path / "speeds.csv"
    train(Problem(SPREAD_LENGTHS, 4, 64), file, steps=61, overhead_ms=5.0)
    last = [float(line.rpartition(",")[2]) for line in file.read_text().splitlines()[-4:]]
    assert last[2] < 0.45


def test_equal_ranks_stay_equal_under_noise(tmp_path):
    file = tmp_path / "speeds.csv"
    train(Problem(SPREAD_LENGTHS, 4, 64), file, steps=41, slowdown=np.ones(4), noise=0.05)
    assert {line.rpartition(",")[2] for line in file.read_text().splitlines()[1:]} == {"1.0000"}


def test_only_auto_estimates():
    problem = Problem(SPREAD_LENGTHS, 4, 64)
    assert type(step_plans(load_config(None, ["schedule.mode=dynamic"]), problem, everyone, None)) is Planner
    config = load_config(None, ["schedule.mode=dynamic", "schedule.speeds=auto"])
    assert isinstance(step_plans(config, problem, everyone, None), EstimatedSpeeds)


POSITIONS, STEPS = 512, 4
MULTIPLE = 48
"""500 tokens are rounded up to 528."""
SETTINGS = (
    *("workload.dataset=lognormal", "workload.max_length=500", f"workload.pad_to_multiple_of={MULTIPLE}"),
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
    rows = [[RowBuilder(rank, policy, layout, problem.lengths) for rank in (0, 1)] for layout in ("padded", "packed")]
    planner, widths = Planner(policy, problem), set()
    for step in range(STEPS):
        plan = planner.plan(step)
        planned = step_facts(plan, problem)
        for rank, share in enumerate(plan.shares):
            batches = [make_micro_batch(workload, workload.train, ids, MULTIPLE) for ids in share]
            n, width = np.array([batch.inputs["input_ids"].shape for batch in batches]).T
            parts = [LossPart(b.n, b.weight, b.width, b.tokens, torch.zeros(())) for b in batches]
            row, packed = (row_of(builders[rank], step, share, parts) for builders in rows)
            assert row.padded_tokens == planned.padded_tokens[rank] == (n * width).sum()
            assert row.padded_tokens2 == (n * width**2).sum()
            assert row.real_tokens2 == (problem.lengths[np.concatenate(share)] ** 2).sum() == packed.padded_tokens2
            assert row.max_seq_len_in_batch == width.max()
            assert planned.costs[rank] == pytest.approx(problem.cost.cost_padded(n, width).sum())
            widths.update(width.tolist())
    assert max(widths) == POSITIONS and len(widths) > 1
