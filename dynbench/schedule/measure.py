"""Runs a policy over many steps and sums up what its plans cost: one line of `solve`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynbench.schedule.evaluate import StepFacts, step_facts
from dynbench.schedule.plan import DataOrder, Exactness, FloatArray, IntArray
from dynbench.schedule.policy import BatchPolicy, Policy, Problem

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
    return float(series.mean_lengths.std()) / reference if len(series) > 1 and reference > 0 else None


def adjacent_correlation(series: Series) -> float | None:
    """Pearson correlation of the mean lengths of neighbouring steps; None for fewer than 4 steps or no spread."""
    means = series.mean_lengths
    first, second = means[:-1], means[1:]
    if len(means) < 4 or first.std() == 0 or second.std() == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])
