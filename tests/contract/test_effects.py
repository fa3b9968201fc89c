"""What a setting is said to decide is what the registered policies and data sets read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from dynbench.config.schema import Dataset, Workload
from dynbench.config.situation import (
    CAPPED_POLICIES,
    COST_POLICIES,
    FILE_DATASETS,
    GENERATED_DATASETS,
    SPEED_POLICIES,
    TEXT_FILE_DATASETS,
)
from dynbench.errors import UsageError
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.planner import Planner
from dynbench.schedule.policy import Problem, missing_package, policy_class, policy_names
from dynbench.workloads.datasets.base import TextSplit
from dynbench.workloads.datasets.registry import REGISTRY as DATASETS
from dynbench.workloads.datasets.registry import load_dataset

STEPS = 12
PROBLEM = Problem(
    lengths=np.clip(np.random.default_rng(3).lognormal(3, 1, 2000).astype(np.int64), 2, 300),
    workers=4,
    global_batch=32,
    buffer=40,
)
UNEQUAL = np.array([1, 0.5, 1, 0.25])
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
@pytest.mark.parametrize("policy", policy_names())
def test_a_setting_changes_the_plans_of_the_policies_that_read_it(policy: str, setting: str) -> None:
    if reason := missing_package(policy):
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


def test_policies_that_keep_to_capacities() -> None:
    assert {name for name in policy_names() if policy_class(name).capped} == set(CAPPED_POLICIES)


@pytest.mark.parametrize("dataset", get_args(Dataset))
def test_generated_data_have_no_texts(dataset: str, tmp_path: Path) -> None:
    assert dataset in (*GENERATED_DATASETS, *FILE_DATASETS, "sst2")
    file = tmp_path / "trace.txt"
    file.write_text("3\n4\n", encoding="utf-8")
    named = {"data_path": str(file)} if dataset in FILE_DATASETS else {}
    if dataset in GENERATED_DATASETS:
        train = load_dataset(Workload(dataset=dataset, **named)).train  # type: ignore[arg-type]
        assert not isinstance(train, TextSplit)


@pytest.mark.parametrize("dataset", get_args(Dataset))
def test_only_files_have_columns_to_name(dataset: str) -> None:
    load: Callable[[Workload], object] = DATASETS[dataset]
    assert (load.__module__.rpartition(".")[2] in FILE_DATASETS) == (dataset in FILE_DATASETS)
    assert (dataset in TEXT_FILE_DATASETS) == (dataset in FILE_DATASETS and dataset not in GENERATED_DATASETS)
