"""Speeds estimated from a run, on ranks whose compute time follows a formula."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dynbench.config.layers import load_config
from dynbench.engine.planning import EstimatedSpeeds, StepPlans, step_plans
from dynbench.lengths import SST2
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.plan import FloatArray
from dynbench.schedule.planner import Planner
from dynbench.schedule.policy import Problem

LENGTHS = np.random.default_rng(0).permutation(SST2.lengths())
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
    plans = EstimatedSpeeds(Planner("partition", problem), problem, EVERY, everyone, file)
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


def test_the_first_estimate_finds_the_slow_rank(tmp_path: Path) -> None:
    file = tmp_path / "speeds.csv"
    ratios = train(Problem(LENGTHS, 4, 64, micro_batches=4), file, steps=EVERY + 1)
    assert min(ratios[:EVERY]) > 1.5
    assert ratios[EVERY] < 1.15
    assert file.read_text() == "step,rank,speed\n10,0,1.0000\n10,1,1.0000\n10,2,0.5000\n10,3,1.0000\n"


@pytest.mark.parametrize("cost", [CostModel(), CostModel("tokens_sq"), CostModel("measured", alpha=2.0, beta=0.1)])
def test_after_fifty_steps_the_slowest_rank_is_near_the_bound(tmp_path: Path, cost: CostModel) -> None:
    problem = Problem(LENGTHS, 4, 64, micro_batches=4, cost=cost)
    ratios = train(problem, tmp_path / "speeds.csv", steps=90, overhead_ms=0.1, noise=0.1)
    assert np.mean(ratios[50:]) < 1.15


def test_overhead_that_the_cost_model_does_not_know_shifts_work_further(tmp_path: Path) -> None:
    file = tmp_path / "speeds.csv"
    train(Problem(LENGTHS, 4, 64), file, steps=61, overhead_ms=5.0)
    last = [float(line.rpartition(",")[2]) for line in file.read_text().splitlines()[-4:]]
    assert last[2] < 0.45


def test_equal_ranks_stay_equal_under_noise(tmp_path: Path) -> None:
    file = tmp_path / "speeds.csv"
    train(Problem(LENGTHS, 4, 64), file, steps=41, slowdown=np.ones(4), noise=0.05)
    speeds = {line.rpartition(",")[2] for line in file.read_text().splitlines()[1:]}
    assert speeds == {"1.0000"}


def test_only_auto_estimates() -> None:
    problem = Problem(LENGTHS, 4, 64)
    assert type(step_plans(load_config(None, ["schedule.mode=dynamic"]), problem, everyone, None)) is StepPlans
    config = load_config(None, ["schedule.mode=dynamic", "schedule.speeds=auto"])
    assert isinstance(step_plans(config, problem, everyone, None), EstimatedSpeeds)
