"""Whether every step of a run fits into the capacities, and the largest global batch of which that is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.policy import Problem, make_policy
from dynbench.schedule.streams import automatic_buffer

TRIED_ONE_BY_ONE = 512
"""Global batches tried without leaving one out; below these, every step down is a hundredth."""

OnBatch = Callable[[int], None]
"""Told which global batch is tried next."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A global batch with which every step of a run fits."""

    global_batch: int
    largest: bool
    """Whether every larger one below the batch that does not fit was tried."""


def largest_fitting(
    policy: str, problem: Problem, steps: int, on_batch: OnBatch = lambda batch: None
) -> Fitting | None:
    """The largest global batch below the problem's with which all steps fit; None where there is none.

    Another batch cuts the data elsewhere: a smaller one may fail in a step whose samples a larger one holds. So this is
    no bisection: from the most that any plan can hold downwards, each one is checked in every step.

    Args:
        policy: a name of the registry.
        problem: what does not fit.
        steps: of the run, warm-up included.
        on_batch: told what is tried.
    """
    exhaustive = True
    automatic = problem.buffer == automatic_buffer(problem.global_batch, problem.workers)
    for tried, batch in enumerate(_candidates(policy, problem)):
        on_batch(batch)
        buffer = None if automatic else problem.buffer
        exhaustive = exhaustive and tried <= TRIED_ONE_BY_ONE
        try:
            fits = make_policy(policy, replace(problem, global_batch=batch, buffer=buffer)).misfit(steps) is None
        except (UsageError, NothingFits):  # a batch that this policy cannot deal at all
            continue
        if fits:
            return Fitting(batch, exhaustive)
    return None


def _candidates(policy: str, problem: Problem) -> Iterator[int]:
    """Global batches below the problem's that could fit if all samples were the shortest, falling."""
    ranks = problem.workers
    stride = ranks if policy == "static" else 1
    batch, tried = min(problem.global_batch - 1, _most(policy, problem)) // stride * stride, 0
    while batch >= ranks:
        yield batch
        tried += 1
        batch -= stride if tried <= TRIED_ONE_BY_ONE else max(1, batch // 100 // stride) * stride


def _most(policy: str, problem: Problem) -> int:
    """No plan of a step has more samples."""
    if problem.micro_batches == "auto":
        return problem.global_batch
    ranks, shortest = problem.workers, problem.padded_lengths.min(keepdims=True)
    limits = problem.capacity.limits(ranks, shortest)[:, 0] * problem.micro_batches
    if problem.packed:
        limits //= shortest
    return ranks * int(limits.min()) if policy == "static" else int(limits.sum())
