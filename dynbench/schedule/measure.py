"""Policies over many steps: what their plans cost, and what heuristics and other costs lose against exact plans.

For costs that never fall with the count, greedy (the next sample to the rank whose next cost is least) reaches the
least maximum T: before it takes a cost above T, every rank holds all it can at T, and those are at least B. So its gap
in the maximum is zero and exact search adds the variance only, while naive counts have a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import StepFacts, step_costs, step_facts
from dynbench.schedule.plan import DataOrder, Exactness, FloatArray, IntArray, stable_argsort
from dynbench.schedule.policy import BatchPolicy, Policy, Problem, make_policy
from dynbench.schedule.prefix import Prefix
from dynbench.schedule.prefix_counts import room_of, solve_greedy

Clock = Callable[[], float]

_STRENGTH: tuple[Exactness, ...] = ("none", "maximum", "both")


@dataclass(frozen=True, slots=True)
class Series:
    """What a policy's plans amount to, step by step.

    Attributes:
        max_cost: slowest rank's predicted cost over speed, shape [T].
        variance: variance of the cost over ranks, shape [T].
        bound: least possible maximum of the samples taken, shape [T].
        padded_tokens, real_tokens, samples: sums over ranks, shape [T].
        local_batches: samples per rank, shape [T, G].
        plan_ms: planning time; that of a window is spread over its steps, shape [T].
        rank_costs: cost per rank in the first step, shape [G].
        capacity_violations: micro-batches above capacity, in all.
        exact: what is proven about every one of the plans.
    """

    max_cost: FloatArray
    variance: FloatArray
    bound: FloatArray
    padded_tokens: IntArray
    real_tokens: IntArray
    samples: IntArray
    local_batches: IntArray
    plan_ms: FloatArray
    rank_costs: FloatArray
    capacity_violations: int
    exact: Exactness

    def __len__(self) -> int:
        return len(self.max_cost)

    @property
    def mean_lengths(self) -> FloatArray:
        """Mean real length of each step's samples, shape [T], tokens."""
        means: FloatArray = self.real_tokens / self.samples
        return means

    def cost_per_token(self, steps: int) -> float:
        """Summed maximum cost over real tokens in the first `steps` steps: what a real token takes."""
        return float(self.max_cost[:steps].sum() / self.real_tokens[:steps].sum())


def policy_window(policy: Policy) -> int:
    """Global batches that a policy plans together (W)."""
    return policy.window if isinstance(policy, BatchPolicy) else 1


def run_policy(
    policy: Policy, problem: Problem, steps: int, limit_s: float | None = None, clock: Clock = time.perf_counter
) -> Series:
    """Plans `steps` steps and evaluates each; plans are not kept.

    Args:
        policy: planned from step 0 on.
        problem: what the plans are judged by (its capacity may be stricter than the policy's own).
        steps: optimizer steps.
        limit_s: end early, after whole windows, once this many seconds are spent; None never does.
        clock: seconds; replaced in tests.

    Raises:
        NothingFits: a step's samples do not fit into the capacities.
    """
    window, epoch_steps = policy_window(policy), problem.data_order().steps_per_epoch
    first_of_window: list[int] = []
    facts: list[StepFacts] = []
    plan_ms: list[float] = []
    weakest = _STRENGTH[-1]
    plans = policy.plans()
    judged = problem
    if policy.lengths is not problem.lengths:  # of pieces
        judged = replace(problem, lengths=policy.lengths, second=None)
    begin = clock()
    for done in range(steps):
        # Windows begin anew with every epoch.
        if done % epoch_steps % window == 0:
            if limit_s is not None and done and clock() - begin > limit_s:
                break
            first_of_window.append(done)
        started = clock()
        plan = next(plans)
        plan_ms.append((clock() - started) * 1e3)
        facts.append(step_facts(plan, judged))
        weakest = min(weakest, plan.exact, key=_STRENGTH.index)
    return Series(
        max_cost=np.array([f.max_cost for f in facts]),
        variance=np.array([f.variance for f in facts]),
        bound=np.array([f.bound for f in facts]),
        padded_tokens=np.array([f.padded_tokens.sum() for f in facts]),
        real_tokens=np.array([f.real_tokens.sum() for f in facts]),
        samples=np.array([f.local_batches.sum() for f in facts]),
        local_batches=np.stack([f.local_batches for f in facts]),
        plan_ms=_spread(np.array(plan_ms), first_of_window),
        rank_costs=facts[0].costs,
        capacity_violations=sum(f.capacity_violations for f in facts),
        exact=weakest,
    )


def _spread(plan_ms: FloatArray, starts: Sequence[int]) -> FloatArray:
    """The planning time of each window, which its first step paid, over all its steps."""
    lengths = np.diff(np.append(starts, len(plan_ms)))
    spread: FloatArray = np.repeat(np.add.reduceat(plan_ms, starts) / lengths, lengths)
    return spread


def random_mean_lengths(problem: Problem, steps: int) -> FloatArray:
    """Mean lengths of random global batches, those of `static` on shuffled data, shape [steps], tokens."""
    order = DataOrder(len(problem.lengths), problem.global_batch, problem.seed)
    sums: list[FloatArray] = []
    found = epoch = 0
    while found < steps:
        batches = order.epoch_batches(epoch)[: steps - found]
        sums.append(problem.lengths[batches].sum(axis=1) / problem.global_batch)
        found, epoch = found + len(batches), epoch + 1
    return np.concatenate(sums)


def length_spread(series: Series, problem: Problem) -> float | None:
    """Standard deviation of the steps' mean lengths over that of random batches; None where either says nothing."""
    reference = float(random_mean_lengths(problem, len(series)).std())
    return float(series.mean_lengths.std()) / reference if reference > 0 else None


def adjacent_correlation(series: Series) -> float | None:
    """Pearson correlation of the mean lengths of neighbouring steps; None for fewer than 4 steps or no spread."""
    means = series.mean_lengths
    first, second = means[:-1], means[1:]
    if len(means) < 4 or first.std() == 0 or second.std() == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def equal_counts(allowed: FloatArray, global_batch: int) -> IntArray:
    """B/G samples to every rank, the remainder to the first ones, as far as the limits allow; shape [G]."""
    ranks = len(allowed)
    counts = np.full(ranks, global_batch // ranks)
    counts[: global_batch % ranks] += 1
    return _fill(np.minimum(counts, room_of(allowed)), allowed, np.arange(ranks), global_batch)


def longest_first(allowed: FloatArray, global_batch: int) -> IntArray:
    """Ranks in falling order of their first sample, each filled up to the mean cost of equal counts; shape [G].

    Every rank keeps at least one sample; what is left at the end goes to the ranks with the shortest first samples.
    """
    ranks = len(allowed)
    equal = equal_counts(allowed, global_batch)
    target = float(allowed[np.arange(ranks), equal - 1].mean())
    order = stable_argsort(-allowed[:, 0])
    counts = np.ones_like(equal)
    left = global_batch - ranks
    for rank in order:
        extra = min(left, max(0, int(np.count_nonzero(allowed[rank] <= target)) - 1))
        counts[rank] += extra
        left -= extra
    return _fill(counts, allowed, order[::-1], global_batch)


def _fill(counts: IntArray, allowed: FloatArray, order: IntArray, global_batch: int) -> IntArray:
    """Give what is missing to the ranks in this order, up to their limits."""
    limits = room_of(allowed)
    for rank in order:
        counts[rank] += min(global_batch - int(counts.sum()), int(limits[rank] - counts[rank]))
    return counts


HEURISTICS: dict[str, Callable[[FloatArray, int], IntArray]] = {
    "greedy": lambda allowed, global_batch: solve_greedy(allowed, global_batch).counts,
    "equal_counts": equal_counts,
    "longest_first": longest_first,
}
"""Counts [G] from costs [G, K] (infinite beyond each rank's limit) and the global batch."""


def gap(costs: FloatArray, counts: IntArray, exact_counts: IntArray) -> tuple[float, float]:
    """How much worse counts [G] are than the exact ones at costs [G, K], in units of the exact maximum.

    Returns:
        (max - exact max) / exact max, and (variance - exact variance) / (exact max)²; the second may be negative where
        the maximum is larger.
    """
    ranks = np.arange(len(costs))
    ours, exact = costs[ranks, counts - 1], costs[ranks, exact_counts - 1]
    largest = float(exact.max())
    return (float(ours.max()) - largest) / largest, (float(ours.var()) - float(exact.var())) / largest**2


@dataclass(frozen=True, slots=True)
class GreedyGap:
    """Gaps step by step; in the units of `gap`.

    Attributes:
        max_cost: per heuristic, shape [T].
        variance: per heuristic, shape [T]; NaN where the instance is too large for the exact variance.
    """

    max_cost: Mapping[str, FloatArray]
    variance: Mapping[str, FloatArray]

    def summary(self) -> dict[str, object]:
        """`greedy_gap` of `--json`: that of greedy, and the maximum's under the naive heuristics."""
        return {
            "max_cost": _distribution(self.max_cost["greedy"]),
            "variance": _distribution(self.variance["greedy"]),
            "naive_max_cost": {name: _distribution(gaps) for name, gaps in self.max_cost.items() if name != "greedy"},
            "steps": len(self.max_cost["greedy"]),
        }


def greedy_gap(policy: Prefix, steps: int, limit_s: float | None = None) -> GreedyGap:
    """Plans steps exactly and compares every heuristic's counts on the same buffers.

    Args:
        policy: `prefix` with any solver; the streams advance by the exact counts.
        steps: optimizer steps.
        limit_s: end early once this many seconds are spent; None never does.

    Raises:
        NothingFits: a step's samples do not fit into the capacities.
    """
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in HEURISTICS}
    begin = time.perf_counter()
    batch = policy.problem.global_batch
    exact = Prefix(replace(policy.problem, solver="exact"))
    for done, step in enumerate(exact.steps()):
        if done == steps or (done and limit_s is not None and time.perf_counter() - begin > limit_s):
            break
        for name, heuristic in HEURISTICS.items():
            largest, variance = gap(step.costs, heuristic(step.costs, batch), step.counts)
            pairs[name].append((largest, variance if step.plan.exact == "both" else np.nan))
    gaps = {name: np.array(found).T for name, found in pairs.items()}
    return GreedyGap({name: found[0] for name, found in gaps.items()}, {name: found[1] for name, found in gaps.items()})


def _distribution(gaps: FloatArray) -> dict[str, float] | None:
    """Mean, 95th percentile and maximum; None where no step has a value."""
    known = gaps[~np.isnan(gaps)]
    if not len(known):
        return None
    return {"mean": float(known.mean()), "p95": float(np.percentile(known, 95)), "max": float(known.max())}


@dataclass(frozen=True, slots=True)
class CostTypeLine:
    """A policy that plans with one cost type, judged by another.

    Attributes:
        policy: who plans.
        cost_type: what it plans with.
        judge: what its plans are judged by.
        mean, p95: of the slowest rank's judged cost, over the steps.
    """

    policy: str
    cost_type: str
    judge: str
    mean: float
    p95: float


def compare_cost_types(
    problem: Problem, policies: Sequence[str], costs: Mapping[str, CostModel], steps: int
) -> Iterator[CostTypeLine]:
    """One line per policy, cost type and judge (`tokens`, and `measured` where its coefficients are known).

    Args:
        problem: data, ranks, capacities, speeds and seed; planned with one micro-batch per rank, step by step.
        policies: those that cannot plan this are left out.
        costs: cost type to model.
        steps: optimizer steps.
    """
    judges = {name: replace(problem, cost=costs[name]) for name in ("tokens", "measured") if name in costs}
    for policy in policies:
        for cost_type, cost in costs.items():
            try:
                planner = make_policy(policy, replace(problem, cost=cost, micro_batches=1, window=1))
                plans = list(islice(planner.plans(), steps))
            except (UsageError, NothingFits):
                continue
            for name, judge in judges.items():
                slowest = np.array([step_costs(plan, judge).max() for plan in plans])
                p95 = float(np.percentile(slowest, 95))
                yield CostTypeLine(policy, cost_type, name, float(slowest.mean()), p95)
