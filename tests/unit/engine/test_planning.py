"""The problem that a configuration asks for, and whose share a rank takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dynbench.config.layers import load_config
from dynbench.engine.planning import PlansAhead, ReplicatedPlans, StepPlans, build_problem, probe_speeds
from dynbench.errors import UsageError
from dynbench.runs.probe_record import ProbeRecord
from dynbench.schedule.plan import Share
from dynbench.schedule.planner import Planner

LENGTHS = np.random.default_rng(0).integers(2, 60, size=200)


def test_settings_reach_the_problem() -> None:
    config = load_config(
        None,
        [
            "train.seed=3",
            "schedule.window=2",
            "schedule.cost_type=attention",
            "schedule.attention_a=0.5",
            "schedule.capacity=[30, 40]",
            "schedule.speeds=[1.0, 0.5]",
            "schedule.micro_batches=2",
        ],
    )
    problem = build_problem(config, LENGTHS, 2, 8)
    assert (problem.seed, problem.window, problem.micro_batches, problem.global_batch) == (3, 2, 2, 64)
    assert (problem.cost.cost_type, problem.cost.attention_a, problem.cost.pad_to_multiple_of) == ("attention", 0.5, 8)
    assert [problem.capacity.limit(rank, 10) for rank in (0, 1)] == [30, 40]
    assert problem.relative_speeds().tolist() == [1.0, 0.5]
    assert problem.objective == "sum"
    assert build_problem(load_config(None, ["sync.name=fsdp"]), LENGTHS, 2, 8).objective == "slots"
    given = load_config(None, ["sync.name=fsdp", "schedule.objective=sum"])
    assert build_problem(given, LENGTHS, 2, 8).objective == "sum"


def test_measured_cost() -> None:
    config = load_config(None, ["schedule.cost_type=measured", "schedule.cost_coefficients=[1.0, 0.5, 0.25]"])
    assert float(build_problem(config, LENGTHS, 2, 1).cost.cost(2, 4)) == 1 + 0.5 * 8 + 0.25 * 32


def test_a_probe_must_be_named() -> None:
    config = load_config(None, ["schedule.cost_type=measured", "probe.run=auto"])
    with pytest.raises(UsageError, match=r"probe\.run"):
        build_problem(config, LENGTHS, 2, 1, Path("nowhere"))


def test_ranks_take_disjoint_shares_of_one_plan() -> None:
    problem = build_problem(load_config(None, ["train.global_batch=20"]), LENGTHS, 4, 1)
    for policy in ("static", "partition", "prefix"):
        shares = [ReplicatedPlans(StepPlans(Planner(policy, problem)), rank).share(0) for rank in range(4)]
        ids = np.concatenate([part for share in shares for part in share])
        assert len(ids) == len(set(ids.tolist())) == 20


def test_a_probe_tells_speeds_where_its_ranks_differ() -> None:
    def measured(*speeds: float) -> ProbeRecord:
        return ProbeRecord.model_construct(speeds=list(speeds))

    found = probe_speeds(measured(1.0, 0.5), 2)
    assert found is not None and found.tolist() == [1.0, 0.5]
    assert probe_speeds(measured(1.0, 0.95), 2) is None
    assert probe_speeds(measured(1.0, 0.5), 4) is None


def test_a_step_is_planned_and_told_of_while_the_one_before_begins() -> None:
    asked, told = [], []

    class Plans:
        def share(self, step: int) -> Share:
            asked.append(step)
            return (np.array([step]),)

        def all_shares(self) -> list[Share]:
            return [(np.array([asked[-1]]),), ()]

        def observe(self, share: Share, compute_ms: float) -> None:
            told.append(compute_ms)

    expected: list[list[int]] = []
    plans = PlansAhead(Plans(), lambda share: expected.append([int(ids[0]) for ids in share]), steps=4)
    for step in range(4):
        assert plans.share(step)[0].tolist() == [step]
        assert [[ids.tolist() for ids in share] for share in plans.all_shares() or ()] == [[[step]], []]
        plans.observe((), float(step))
    assert (asked, told) == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0]), "each once, in order, none beyond the last"
    assert expected == [[0, 1], [1, 2], [2, 3]]
