"""Problems drawn from a seed, over all that can be asked of a policy, and what is planned for them."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import Any

import numpy as np

from dynbench.errors import BatchTooLarge, DynbenchError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel
from dynbench.schedule.evaluate import largest_fitting
from dynbench.schedule.measure import adjacent_correlation, greedy_gap, length_spread, run_policy
from dynbench.schedule.policy import Policy, Problem, make_policy, policy_class
from dynbench.schedule.prefix import Prefix

from .values import Value

DRAWN = 600
STEPS = 4
AT_ONCE = 50
OURS = ("static", "partition", "partition", "partition", "window", "window", "prefix", "prefix")
"""Policies by how often they are drawn; others are drawn as often as one of these."""
COSTS = (
    CostModel(),
    CostModel(pad_to_multiple_of=8, positions=100),
    CostModel("tokens_sq"),
    CostModel("attention", attention_a=0.03),
    CostModel("measured", alpha=30.0, beta=0.3, gamma=0.01),
    CostModel("measured", alpha=90.0, beta=0.5, further=20.0),
    CostModel("measured", alpha=5.0, beta=0.0),
)


def drawn(seed: int) -> tuple[str, Problem]:
    """A policy and a problem: of few samples, of some tens or of hundreds; sometimes one that cannot be planned."""
    rng = np.random.default_rng([21, seed])

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    policy = one(*OURS, one(*POLICIES))
    layout = one(*POLICIES[policy].layouts)
    workers = int(one(1, 2, 2, 3, 3, 4, 5, 13))
    batch = workers * int(one(1, 2, 2, 3, 4, 8, 16, 32)) + int(one(0, 0, 1, 2) if policy != "static" else 0)
    samples = batch * int(rng.integers(2, 6)) + int(rng.integers(batch))
    kind = one("heavy", "heavy", "short", "equal", "rare")
    lengths = {
        "heavy": np.clip(rng.lognormal(3, 1, samples), 2, 300),
        "short": rng.integers(1, 9, samples),
        "equal": np.full(samples, 7),
        "rare": np.where(rng.random(samples) < 0.04, 250, rng.integers(4, 12, samples)),
    }[kind].astype(np.int64)
    each, mean, longest = -(-batch // workers), float(lengths.mean()), int(lengths.max())
    steps = [(int(mean), 2 * each + 2), (int(2 * mean) + 1, each + 1), (longest, max(1, each - 1))]
    if layout == "padded":
        limits = [
            Capacity.uniform(each),
            Capacity.table([steps]),
            Capacity.table([[steps[0], steps[-1]]] + [steps] * (workers - 1)),
            Capacity.per_rank([each + int(more) for more in rng.integers(0, 4, workers)]),
        ]
    else:
        tokens = [(length, max(length, int(most * mean * 1.4))) for length, most in steps]
        limits = [
            PackedCapacity.uniform(max(longest, int(1.2 * each * mean))),
            PackedCapacity.table([tokens]),
            PackedCapacity.per_rank([max(longest, int(f * each * mean)) for f in rng.uniform(1, 2, workers)]),
        ]
    free = Capacity() if layout == "padded" else PackedCapacity()
    capacity = one(free, free, *limits)
    parts = one(1, 1, 2, 3, 5, "auto", "auto")
    if rng.random() < 0.9 and not (policy_class(policy).splits and capacity.equal(workers)):
        parts = 1
    if parts != "auto" and rng.random() < 0.9:
        parts = min(parts, each)
    speeds = one(None, None, np.full(workers, 2.0), rng.choice([0.5, 1.0, 3.0], workers), rng.uniform(0.5, 2, workers))
    second = one(None, None, None, rng.integers(0, 2 * int(mean) + 2, samples))
    return policy, Problem(
        lengths,
        workers,
        batch,
        one(*COSTS),
        capacity,
        speeds,
        seed=int(rng.integers(9)),
        order=one("shuffle", "file"),
        window=int(one(2, 3, 8)),
        solver=one("exact", "exact", "greedy", "enumerate" if batch < 16 else "exact"),
        buffer=one(None, each, each + 2, 3 * each),
        micro_batches=parts,
        objective=one("sum", "slots"),
        layout=layout,
        second=second,
        second_weight=float(one(0.0, 0.5, 1.0)),
    )


def planned(seed: int) -> Value:
    """What comes of a drawn problem: its plans by a hash, their sums, what does not fit, and what does."""
    try:
        return _planned(*drawn(seed))
    except DynbenchError as error:
        return [type(error).__name__, error.message, error.hint]


def _planned(name: str, problem: Problem) -> dict[str, Value]:
    policy = make_policy(name, problem)
    found: dict[str, Value] = {"policy": name, "told": _misfit(policy, problem)}
    plans = list(islice(policy.plans(), STEPS))
    text = json.dumps([[[ids.tolist() for ids in share] for share in plan.shares] for plan in plans])
    series = run_policy(policy, problem, STEPS)
    numbers = (
        series.max_cost,
        series.variance,
        series.bound,
        series.rank_costs,
        series.padded_tokens,
        series.local_batches.sum(axis=1),
    )
    found["hash"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    found["exact"] = [str(plan.exact) for plan in plans]
    found["sums"] = [float(each.sum()) for each in numbers] + [series.capacity_violations]
    found["spread"] = [length_spread(series, problem), adjacent_correlation(series), series.exact]
    if isinstance(policy, Prefix):
        found["gap"] = json.loads(json.dumps(greedy_gap(policy, STEPS - 1).summary()))
    return found


def _misfit(policy: Policy, problem: Problem) -> Value:
    """What ends the run before its time, and the largest batch with which it does not end."""
    steps: list[int] = []
    error = policy.misfit(3, steps.append)
    if error is None:
        return [*steps]
    tried: list[int] = []
    best = largest_fitting(policy.name, problem, 3, tried.append) if isinstance(error, BatchTooLarge) else None
    largest = None if best is None else [best.global_batch, best.largest]
    return [*steps, error.message, error.hint, largest, tried]


def drawn_plans(first: int) -> dict[str, Value]:
    """Some of them, by seed."""
    return {str(seed): planned(seed) for seed in range(first, first + AT_ONCE)}
