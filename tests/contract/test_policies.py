"""The rules that every registered policy keeps, and proof that the judge would notice if one did not."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from brute_force import micro_batch_costs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_rules import FLAT, judge_plan, plans_of, taken, total_cost
from plan_rules import plain as ids_of

from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import LAYOUTS, Layout, plan_names, plan_of
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import share_cost, step_facts
from dynbench.schedule.peers.base import EpochPolicy
from dynbench.schedule.peers.row_peers import RowPeer
from dynbench.schedule.plan import StepPlan, single
from dynbench.schedule.policy import BatchPolicy, Planner, Policy, Problem, make_policy
from dynbench.schedule.static import Static

STEPS = 10
COSTS = (
    CostModel("tokens", alpha=9.0, beta=3.0, gamma=2.0, further=20.0),  # which only `measured` pays
    CostModel("tokens_sq", alpha=9.0, beta=3.0, gamma=2.0, further=20.0, pad_to_multiple_of=8),
    CostModel("attention", attention_a=0.01),
    CostModel("measured", alpha=20.0, beta=1.0, gamma=0.01),
    CostModel("measured", alpha=20.0, beta=1.0, further=70.0, pad_to_multiple_of=64, positions=400),
    CostModel("measured", alpha=200.0, further=20.0),
    FLAT,
)


@st.composite
def problems(draw, layout: Layout) -> Problem:
    """Heavy-tailed data over few ranks, with everything that can be limited sometimes limited."""
    workers, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    batch = workers * per_rank
    samples = draw(st.integers(batch, 8 * batch))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = np.clip(rng.lognormal(3, draw(st.sampled_from([0.0, 0.7, 1.5])), samples).astype(int), 1, 400)
    if layout == "padded":
        kind, tight, roomy, some, few = Capacity, per_rank, 2 * per_rank, 2 * per_rank, max(1, per_rank // 2)
    else:
        kind, tight, roomy, some, few = PackedCapacity, 400, 600, 30 * per_rank, 20 * per_rank
    capacities = (
        kind(),
        kind.uniform(some),
        kind.per_rank(rng.integers(tight, roomy + 1, workers).tolist()),
        kind.table([[(16, 2 * roomy), (64, roomy), (400, tight)]]),
        kind.table([[(32, some), (200, few)]]),
    )
    choices: dict[str, Sequence[object]] = {
        "cost": COSTS,
        "capacity": capacities,
        "speeds": (None, rng.choice([0.5, 1.0, 2.0], workers)),
        "seed": range(10),
        "order": ("shuffle", "file"),
        "window": range(1, 7),
        "micro_batches": (1, 1, 2, "auto"),
        "objective": ("sum", "slots"),
        "second": (None, rng.integers(0, 2, samples), rng.integers(0, 300, samples)),
        "second_weight": (0.0, 1.0, 0.37),
    }
    chosen = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    return Problem(lengths, workers, batch, layout=layout, **chosen)


UNCAPPED = [name for name, entry in POLICIES.items() if not entry.capped]


def plain(plans: Iterable[StepPlan]) -> list[object]:
    """Plans as plain lists, to be compared."""
    return [(plan.step, plan.exact, plan.packed, ids_of(plan)) for plan in plans]


def cost_by_hand(plan: StepPlan, problem: Problem) -> list[float]:
    """Cost over speed per rank, of micro-batches by the formulas."""
    free, costs, model = replace(problem, capacity=Capacity()), [], problem.cost
    more = model.further - model.alpha if model.cost_type == "measured" and model.further is not None else 0.0
    for share, speed in zip(plan.shares, problem.relative_speeds(), strict=True):
        of_each = micro_batch_costs(free, np.array([np.bincount(ids, minlength=len(problem.lengths)) for ids in share]))
        costs.append((of_each.sum() + (len(share) - 1) * more) / speed)
    return costs


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
    in_rows, searched = problem.packed and not isinstance(policy, RowPeer), policy.name in ("partition", "window")
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
        of_shares = [share_cost(share, problem) for share in plan.shares]
        np.testing.assert_allclose(of_shares, facts.costs * problem.relative_speeds(), rtol=1e-12)
        assert facts.max_cost == pytest.approx(lasts_by_hand(plan, problem), rel=1e-12)
        assert facts.bound <= facts.max_cost * (1 + 1e-12) or facts.capacity_violations
        assert facts.local_batches.tolist() == list(plan.local_batches)
        if problem.micro_batches != "auto" and ((searched and problem.equal_ranks) or in_rows):
            assert {len(share) for share in plan.shares} == {problem.micro_batches}
        if problem.objective == "slots" and searched:
            assert len({len(share) for share in plan.shares}) == 1, "all ranks synchronise in every micro-batch"
    if policy.level == "window":
        judge_windows(policy, plans)
    if policy.level == "stream":
        judge_stream(policy, plans)


def judge_windows(policy: Policy, plans: Sequence[StepPlan]) -> None:
    """Each window of static's batches, cut short only by the epoch's end, is dealt whole, in no more than partition."""
    assert isinstance(policy, BatchPolicy)
    problem, order = policy.problem, policy.problem.data_order()
    steps, alone = order.steps_per_epoch, []
    with suppress(NothingFits):
        alone = plans_of("partition", problem, len(plans))
    for epoch in range(-(-len(plans) // steps)):
        batches = order.epoch_batches(epoch)
        for first in range(0, steps, policy.window):
            last = min(first + policy.window, steps)
            window, others = (each[epoch * steps + first : epoch * steps + last] for each in (plans, alone))
            if len(window) == last - first:
                assert taken(window) == sorted(batches[first:last].ravel())
                assert len(window) == 1 or {plan.exact for plan in window} == {"none"}
                assert not others or total_cost(window, problem) <= total_cost(others, problem) * (1 + 1e-9)


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
def test_every_policy_keeps_the_rules(plan):
    name, layout = plan_of(plan)
    if reason := POLICIES[name].missing:
        pytest.skip(f"{name} {reason}")

    @settings(max_examples=60 if plan == "window" else 30, suppress_health_check=[HealthCheck.too_slow])
    @given(problems(layout), st.integers(0, STEPS - 1))
    def keeps_them(problem, jump):
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
        planner, asked = Planner(name, policy.problem), (jump, jump, *range(STEPS), 1, jump)
        assert plain(map(planner.plan, asked)) == plain(plans[step] for step in asked)

    keeps_them()


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
