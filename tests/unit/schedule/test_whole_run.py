"""Whether all steps of a run fit is what planning them would tell, and the largest batch the one that trying finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from plan_rules import plans_of, problem_of

from dynbench.errors import BatchTooLarge, DynbenchError, NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule import evaluate
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import Fitting, largest_fitting
from dynbench.schedule.policy import Problem, make_policy, policy_class

STEPS = 25
LONG = (("window", "by length"), ("window", "uniform"))
CAPPED = [name for name, entry in POLICIES.items() if entry.in_train and entry.capped]
TABLE = [(16, 12), (32, 9), (64, 5), (200, 2)]
CAPACITIES = {
    "by length": Capacity.table([TABLE]),
    "unequal": Capacity.table([TABLE, [(length, max(1, most - 2)) for length, most in TABLE], TABLE]),
    "short": Capacity.table([TABLE[:-1]]),
    "uniform": Capacity.uniform(5),
    "packed": PackedCapacity.table([[(40, 170), (75, 150)]]),
}
COSTS = (CostModel(), CostModel("measured", alpha=5.0, beta=0.1, gamma=0.001))


def drawn(seed: int, capacity: Capacity = CAPACITIES["by length"], **changes: object) -> Problem:
    """Three epochs of few samples, with a heavy tail."""
    lengths = np.clip(np.random.default_rng(seed).lognormal(2.5, 0.9, 150), 2, 90).astype(np.int64)
    layout = "packed" if isinstance(capacity, PackedCapacity) else "padded"
    return Problem(lengths, 3, 18, seed=seed, capacity=capacity, layout=layout, **changes)


def first_error(policy: str, problem: Problem, steps: int = STEPS) -> str | None:
    """What planning step after step ends in, the judge."""
    try:
        plans_of(policy, problem, steps)
    except NothingFits as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "capacity"),
    [
        pytest.param(*pair, marks=[pytest.mark.matrix] * (pair in LONG))
        for pair in product(CAPPED, CAPACITIES)
        if "packed" in POLICIES[pair[0]].layouts or pair[1] != "packed"
    ],
)
def test_what_does_not_fit_is_what_planning_meets(policy: str, capacity: str) -> None:
    met = []
    unequal = np.array([1.0, 0.5, 1.0])
    windows = (1, 4) if policy == "window" else (1,)
    for seed, speeds, parts, window in product(range(2), (None, unequal), (1, 2, "auto"), windows):
        changes = {"speeds": speeds, "micro_batches": parts, "window": window, "cost": COSTS[seed]}
        problem = drawn(seed, CAPACITIES[capacity], **changes)
        try:
            misfit = make_policy(policy, problem).misfit(STEPS)
        except UsageError:  # a combination that the policy refuses
            continue
        except NothingFits as error:  # told without any plan
            misfit = error
        expected = first_error(policy, problem)
        assert (misfit and str(misfit)) == expected
        met.append(expected)
    assert any(met) or not policy_class(policy).fixed_batch


def fits(policy: str, problem: Problem, steps: int = STEPS) -> bool:
    try:
        return first_error(policy, problem, steps) is None
    except DynbenchError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("policy", [name for name in CAPPED if policy_class(name).fixed_batch])
def test_the_largest_batch_is_the_one_that_trying_all_finds(policy: str) -> None:
    stopped_later = 0
    roomy = Capacity.table([[(16, 12), (32, 8), (60, 6), (200, 4)]])
    for seed in range(8):
        problem = drawn(seed, roomy) if policy == "static" else drawn(seed)
        misfit = make_policy(policy, problem).misfit(STEPS)
        if misfit is None:
            continue
        assert isinstance(misfit, BatchTooLarge)
        fitting = [batch for batch in range(3, 18) if fits(policy, replace(problem, global_batch=batch))]
        found = largest_fitting(policy, problem, STEPS)
        assert found == (Fitting(max(fitting), True) if fitting else None)
        stopped_later += not misfit.message.startswith("step 0:")
    assert stopped_later, "no step but the first was ever at fault"


@pytest.mark.parametrize(("policy", "asked", "batch"), [("static", 10, 4), ("static", 4, 2), ("partition", 10, 7)])
def test_the_batches_tried_are_told_and_those_of_static_are_multiples_of_its_ranks(
    policy: str, asked: int, batch: int
) -> None:
    """Ranks of 5 and 2 hold a batch of 4 in equal shares, and one of 7 in any."""
    problem = problem_of([1] * 40, 2, asked, capacity=Capacity.per_rank([5, 2]))
    told: list[int] = []
    assert largest_fitting(policy, problem, 2, told.append) == Fitting(batch, True)
    assert told == [batch]


@pytest.mark.parametrize(
    ("policy", "told"), [("static", [598, 596, 594, 592, 588]), ("partition", [599, 598, 597, 596, 591])]
)
def test_beyond_the_batches_that_are_tried_one_by_one_they_fall_by_a_hundredth(
    monkeypatch: pytest.MonkeyPatch, policy: str, told: list[int]
) -> None:
    monkeypatch.setattr(evaluate, "TRIED_ONE_BY_ONE", 3)
    problem = problem_of([1] + [60] * 1199, 2, 600, capacity=Capacity.table([[(1, 300), (60, 4)]]))
    seen: list[int] = []
    assert largest_fitting(policy, problem, 2, seen.append) == Fitting(8, False) and seen[:5] == told


@pytest.mark.parametrize(("asked", "all_tried"), [(12, True), (13, False)])
def test_the_largest_is_known_to_be_where_all_above_it_were_tried(
    monkeypatch: pytest.MonkeyPatch, asked: int, all_tried: bool
) -> None:
    monkeypatch.setattr(evaluate, "TRIED_ONE_BY_ONE", 3)
    problem = problem_of([1] + [60] * 99, 2, asked, capacity=Capacity.table([[(1, 300), (60, 4)]]))
    assert largest_fitting("partition", problem, 2) == Fitting(8, all_tried)


def test_with_automatic_micro_batches_capacities_bound_no_batch() -> None:
    problem = problem_of([40] * 5, 2, capacity=Capacity.uniform(1), micro_batches="auto", objective="slots")
    assert largest_fitting("partition", problem, 1) == Fitting(4, True)
