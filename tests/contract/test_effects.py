"""What a setting is said to decide is what the registered policies and data sets read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynbench.config.schema import Workload
from dynbench.errors import UsageError
from dynbench.plugins import DATASETS, POLICIES
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.policy import Planner, Problem, policy_class
from dynbench.workloads.datasets.base import TextSplit, load_dataset

COST_POLICIES = tuple(name for name, entry in POLICIES.items() if entry.costs)
SPEED_POLICIES = tuple(name for name, entry in POLICIES.items() if entry.speeds != "never")
STEPS = 12
PROBLEM = Problem(
    lengths=np.clip(np.random.default_rng(3).lognormal(3, 1, 2000).astype(np.int64), 2, 300),
    workers=4,
    global_batch=32,
    buffer=40,
)
UNEQUAL = np.array([1, 0.5, 1, 0.25])
SECOND = np.random.default_rng(4).integers(0, 200, 2000)
NEARLY_EQUAL = np.random.default_rng(3).integers(17, 22, 2000)
FEW_LENGTHS = np.random.default_rng(3).integers(2, 7, 2000)
QUADRATIC = CostModel("attention", attention_a=0.5)
MEASURED = CostModel("measured", alpha=1.0, beta=1.0, gamma=0.0)

CHANGES: dict[str, tuple[dict[str, object], dict[str, object], tuple[str, ...]]] = {
    "cost": ({}, {"cost": QUADRATIC}, COST_POLICIES),
    "cost of unequal ranks": (
        {"speeds": UNEQUAL},
        {"cost": QUADRATIC},
        (*COST_POLICIES, "hf_batch_rebalance"),
    ),
    "second weight": ({"second": SECOND}, {"second_weight": 0.0}, COST_POLICIES),
    "speeds": ({}, {"speeds": UNEQUAL}, SPEED_POLICIES),
    "window": ({}, {"window": 4}, ("window",)),
    "buffer": ({}, {"buffer": 9}, ("prefix",)),
    "solver": ({"lengths": FEW_LENGTHS}, {"solver": "greedy"}, ("prefix",)),
    "micro_batches auto": ({}, {"micro_batches": "auto"}, ()),
    "micro_batches auto, capped": (
        {"capacity": Capacity.uniform(32)},
        {"micro_batches": "auto", "capacity": Capacity.uniform(5)},
        ("static", "partition", "window"),
    ),
    "micro_batches auto, measured": ({"cost": MEASURED}, {"micro_batches": "auto"}, ("partition", "window")),
}
"""Per setting: what the problem has already, what is changed, and the policies whose plans that changes."""


def plans(policy: str, **changes: object) -> list[list[list[list[int]]]]:
    """Sample ids per step, rank and micro-batch."""
    planner = Planner(policy, replace(PROBLEM, **changes))  # type: ignore[arg-type]  # fields of Problem
    return [[[ids.tolist() for ids in share] for share in planner.plan(step).shares] for step in range(STEPS)]


@pytest.mark.parametrize("setting", CHANGES)
@pytest.mark.parametrize("policy", [name for name, entry in POLICIES.items() if "padded" in entry.layouts])
def test_a_setting_changes_the_plans_of_the_policies_that_read_it(policy: str, setting: str) -> None:
    if reason := POLICIES[policy].missing:
        pytest.skip(reason)
    base, change, readers = CHANGES[setting]
    if change.get("micro_batches") is not None and not policy_class(policy).splits:
        with pytest.raises(UsageError, match=r"schedule\.micro_batches"):
            plans(policy, **{**base, **change})
        return
    assert (plans(policy, **base) != plans(policy, **{**base, **change})) == (policy in readers)


@pytest.mark.parametrize("policy", sorted(set(SPEED_POLICIES) - set(COST_POLICIES)))
def test_unequal_counts_are_put_in_order_by_their_cost(policy: str) -> None:
    """With equal counts any cost gives the order of the lengths."""
    ragged = {"speeds": UNEQUAL, "lengths": NEARLY_EQUAL, "global_batch": 34}
    assert plans(policy, **ragged) != plans(policy, **ragged, cost=QUADRATIC)


@pytest.mark.parametrize("dataset", [name for name, entry in DATASETS.items() if entry.generated])
def test_generated_data_have_no_texts(dataset: str, tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("3\n4\n", encoding="utf-8")
    named = {"data_path": str(tmp_path / "trace.txt")} if DATASETS[dataset].of_files else {}
    assert not isinstance(load_dataset(Workload(dataset=dataset, **named)).train, TextSplit)
