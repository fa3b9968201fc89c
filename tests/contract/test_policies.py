"""The rules that every registered policy keeps, and proof that the judge would notice if one did not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_rules import judge_plan

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import LAYOUTS, Layout, plan_names, plan_of
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import step_facts
from dynbench.schedule.peers.base import EpochPolicy
from dynbench.schedule.peers.row_peers import RowPeer
from dynbench.schedule.plan import StepPlan, single
from dynbench.schedule.policy import BatchPolicy, Planner, Policy, Problem, make_policy
from dynbench.schedule.static import Static

STEPS = 10
COSTS = (
    CostModel("tokens"),
    CostModel("tokens_sq", pad_to_multiple_of=8),
    CostModel("attention", attention_a=0.01),
    CostModel("measured", alpha=20.0, beta=1.0, gamma=0.01),
    CostModel("measured", alpha=20.0, beta=1.0, further=70.0, pad_to_multiple_of=64, positions=400),
)


@st.composite
def problems(draw, layout: Layout) -> Problem:
    """Heavy-tailed data over few ranks, with everything that can be limited sometimes limited."""
    workers, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    batch = workers * per_rank
    samples = draw(st.integers(batch, 8 * batch))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = np.clip(rng.lognormal(3, draw(st.sampled_from([0.0, 0.7, 1.5])), samples).astype(int), 1, 400)
    roomy, tight = (2 * per_rank, per_rank)
    of_layout = {
        "padded": [
            Capacity(),
            Capacity.uniform(roomy),
            Capacity.per_rank(rng.integers(tight, roomy + 1, workers).tolist()),
            Capacity.table([[(16, 2 * roomy), (64, roomy), (400, tight)]]),
            Capacity.table([[(32, roomy), (200, max(1, tight // 2))]]),
        ],
        "packed": [
            PackedCapacity(),
            PackedCapacity.uniform(per_rank * 30),
            PackedCapacity.per_rank(rng.integers(400, 600, workers).tolist()),
            PackedCapacity.table([[(16, 900), (64, 600), (400, 400)]]),
            PackedCapacity.table([[(32, per_rank * 40), (200, per_rank * 20)]]),
        ],
    }
    capacity = draw(st.sampled_from(of_layout["padded" if layout == "padded" else "packed"]))
    return Problem(
        lengths,
        workers,
        batch,
        cost=draw(st.sampled_from(COSTS)),
        capacity=capacity,
        speeds=draw(st.sampled_from([None, rng.choice([0.5, 1.0, 2.0], workers)])),
        seed=draw(st.integers(0, 9)),
        order=draw(st.sampled_from(["shuffle", "file"])),
        window=draw(st.sampled_from([1, 3])),
        micro_batches=draw(st.sampled_from([1, 1, 2, "auto"])),
        objective=draw(st.sampled_from(["sum", "slots"])),
        layout=layout,
        second=draw(st.sampled_from([None, rng.integers(0, draw(st.sampled_from([2, 300])), samples)])),
        second_weight=draw(st.sampled_from([0.0, 1.0, 0.37])),
    )


UNCAPPED = [name for name, entry in POLICIES.items() if not entry.capped]


def plain(plans: Sequence[StepPlan]) -> list[object]:
    """Plans as plain lists, to be compared."""
    return [(p.step, p.exact, p.packed, [[ids.tolist() for ids in share] for share in p.shares]) for p in plans]


def cost_by_hand(plan: StepPlan, problem: Problem) -> list[float]:
    """Cost over speed per rank, sample by sample, in plain Python."""
    model, multiple, result = problem.cost, problem.cost.pad_to_multiple_of, []
    for share, speed in zip(plan.shares, problem.relative_speeds(), strict=True):
        total = 0.0
        for ids in share:
            lengths = [int(problem.lengths[i]) for i in ids]
            padded = min(-(-max(lengths) // multiple) * multiple, model.positions or 10**9)
            tokens = sum(lengths) if plan.packed else len(lengths) * padded
            tokens += 0 if problem.second is None else problem.second_weight * sum(int(problem.second[i]) for i in ids)
            squares = sum(length**2 for length in lengths) if plan.packed else len(lengths) * padded**2
            total += {
                "tokens": tokens,
                "tokens_sq": tokens**2,
                "attention": tokens + model.attention_a * squares,
                "measured": model.alpha + model.beta * tokens + model.gamma * squares,
            }[model.cost_type]
        if model.cost_type == "measured" and model.further is not None:
            total += (len(share) - 1) * (model.further - model.alpha)
        result.append(total / speed)
    return result


def lasts_by_hand(plan: StepPlan, problem: Problem) -> float:
    """What the step lasts: the slowest rank's cost, or the sum of the slowest ones of each micro-batch."""
    if problem.objective == "sum":
        return max(cost_by_hand(plan, problem))
    whole = [
        cost_by_hand(replace(plan, shares=tuple(share[:number] or share for share in plan.shares)), problem)
        for number in range(1, max(map(len, plan.shares)) + 1)
    ]
    return float(np.diff([[0.0] * problem.workers, *whole], axis=0).max(axis=1).sum())


def judge(policy: Policy, plans: Sequence[StepPlan]) -> None:
    """Every rule that holds for plans of consecutive steps from 0, whatever the policy."""
    problem, order = policy.problem, policy.problem.data_order()
    if policy.coverage.cut:
        problem = replace(problem, lengths=policy.lengths, second=None)
    for step, plan in enumerate(plans):
        assert plan.step == step
        expected = None
        if policy.level == "step":
            epoch, offset = divmod(step, order.steps_per_epoch)
            expected = order.epoch_batches(epoch)[offset]
        judge_plan(plan, problem, expected, fixed_batch=policy.fixed_batch, capped=policy.name not in UNCAPPED)
        facts = step_facts(plan, problem)
        np.testing.assert_allclose(facts.costs, cost_by_hand(plan, problem), rtol=1e-12)
        assert facts.max_cost == pytest.approx(lasts_by_hand(plan, problem), rel=1e-12)
        assert facts.bound <= facts.max_cost * (1 + 1e-12) or facts.capacity_violations
        assert facts.local_batches.tolist() == list(plan.local_batches)
        if problem.packed and problem.micro_batches != "auto" and not isinstance(policy, RowPeer):
            assert {len(share) for share in plan.shares} == {problem.micro_batches}
        if problem.objective == "slots" and policy.name in ("partition", "window"):
            assert len({len(share) for share in plan.shares}) == 1, "all ranks synchronise in every micro-batch"
    if policy.level == "window":
        judge_windows(policy, plans)
    if policy.level == "stream":
        judge_stream(policy, plans)


def judge_windows(policy: Policy, plans: Sequence[StepPlan]) -> None:
    """Each window of static's batches, cut short only by the epoch's end, is dealt whole."""
    assert isinstance(policy, BatchPolicy)
    order = policy.problem.data_order()
    steps = order.steps_per_epoch
    for epoch in range(-(-len(plans) // steps)):
        batches = order.epoch_batches(epoch)
        for first in range(0, steps, policy.window):
            last = min(first + policy.window, steps)
            window = plans[epoch * steps + first : epoch * steps + last]
            if len(window) == last - first:
                taken = np.concatenate([plan.sample_ids() for plan in window])
                assert sorted(taken) == sorted(batches[first:last].ravel())


def judge_stream(policy: Policy, plans: Sequence[StepPlan]) -> None:
    """No sample comes twice as long as no rank can have begun a second epoch."""
    seen: list[int] = []
    if isinstance(policy, EpochPolicy):  # its epochs end where it says
        plans = plans[: policy.steps_per_epoch]
    per_rank = np.zeros(policy.problem.workers, dtype=int)
    for plan in plans:
        per_rank += plan.local_batches
        if per_rank.max() > len(policy.problem.lengths) // policy.problem.workers:
            break
        seen += plan.sample_ids().tolist()
    assert len(seen) - len(set(seen)) <= policy.coverage.repeated


def make(name: str, problem: Problem) -> Policy:
    """The policy for the problem, or for its simpler form where it refuses unequal ranks."""
    try:
        return make_policy(name, problem)
    except UsageError:
        return make_policy(name, replace(problem, speeds=None, capacity=Capacity(), micro_batches=1, second=None))


@pytest.mark.slow
@pytest.mark.parametrize("plan", [name for layout in LAYOUTS for name in plan_names(layout)])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), jump=st.integers(0, STEPS - 1))
def test_every_policy_keeps_the_rules(plan, data, jump):
    name, layout = plan_of(plan)
    problem = data.draw(problems(layout))
    if reason := POLICIES[name].missing:
        pytest.skip(f"{name} {reason}")
    try:
        policy = make(name, problem)
        plans = list(islice(policy.plans(), STEPS))
    except NothingFits:
        assert not problem.capacity.unlimited
        return
    except UsageError as error:
        assert "less than a row" in error.message
        return
    assert {plan.packed for plan in plans} == {layout != "padded"}
    judge(policy, plans)
    assert plain(list(islice(make(name, policy.problem).plans(), STEPS))) == plain(plans)
    assert plain([Planner(name, policy.problem).plan(jump)]) == plain([plans[jump]])


class Broken(BatchPolicy):
    """Static with one rule broken by its subclass."""

    name = "broken"

    def deal(self, batches: Sequence[np.ndarray], first_step: int) -> Sequence[StepPlan]:
        plans = Static(replace(self.problem, capacity=Capacity())).deal(batches, first_step)
        return [self.spoil(plan) for plan in plans]

    def spoil(self, plan: StepPlan) -> StepPlan:
        raise NotImplementedError


def respread(plan: StepPlan, ids: np.ndarray) -> StepPlan:
    return replace(plan, shares=single(np.array_split(ids, len(plan.shares))))


SPOIL: dict[str, Callable[[StepPlan, Problem], StepPlan]] = {
    "loses a sample": lambda plan, _: respread(plan, plan.sample_ids()[1:]),
    "repeats a sample": lambda plan, _: respread(plan, np.append(plan.sample_ids()[1:], plan.sample_ids()[-1])),
    "takes another batch": lambda plan, problem: respread(plan, (plan.sample_ids() + 1) % len(problem.lengths)),
    "idles a rank": lambda plan, _: replace(plan, shares=single([(ids := plan.sample_ids()), ids[:0], ids[:0]])),
    "loads one rank": lambda plan, _: replace(plan, shares=single([(ids := plan.sample_ids())[2:], ids[:1], ids[1:2]])),
}


class Spoiled(Broken):
    fault: str

    def spoil(self, plan):
        return SPOIL[self.fault](plan, self.problem)


class SkipsASharedWindow(Broken):
    level = "window"
    window = 2

    def spoil(self, plan):
        return respread(plan, plan.sample_ids() if plan.step % 2 else self.problem.data_order().permutation(0)[:12])


class RepeatsItsStream(Broken):
    level = "stream"

    def plans(self, start: int = 0) -> Iterator[StepPlan]:
        first = next(super().plans())
        return (replace(first, step=step) for step in range(start, start + STEPS))

    def spoil(self, plan):
        return plan


def spoiled_problem(capacity: Capacity) -> Problem:
    lengths = np.clip(np.random.default_rng(2).lognormal(3, 1, 96).astype(int), 1, 200)
    return Problem(lengths, 3, 12, capacity=capacity)


@pytest.mark.parametrize(
    "broken",
    [*(type(fault, (Spoiled,), {"fault": fault}) for fault in SPOIL), SkipsASharedWindow, RepeatsItsStream],
    ids=lambda policy: policy.__name__,
)
def test_a_broken_policy_is_caught(broken):
    policy = broken(spoiled_problem(Capacity.uniform(6)))
    with pytest.raises(AssertionError):
        judge(policy, list(islice(policy.plans(), STEPS)))


def test_a_policy_that_lies_about_its_cost_is_caught(monkeypatch):
    policy = Static(spoiled_problem(Capacity()))
    plans = list(islice(policy.plans(), STEPS))
    monkeypatch.setattr(CostModel, "cost_padded", lambda self, n, length, extra: np.multiply(n, length) * 0.99)
    with pytest.raises(AssertionError):
        judge(policy, plans)
