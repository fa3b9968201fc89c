"""`token_budget`: max-tokens batching, as in fairseq (Ott et al., NAACL 2019 demo) and its kin.

Padded, the epoch is sorted by length and cut into batches of at most T padded tokens; batches are shuffled and dealt to
ranks G at a time. Every batch costs nearly T, but a step's samples vary in number and each rank's are of one length.
Packed, the epoch becomes rows of at most T tokens, alike in tokens, of the fewest steps that are found.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from dynbench.errors import NothingFits
from dynbench.schedule.balancing import Work, exchanged, longest_first
from dynbench.schedule.capacity import UNLIMITED
from dynbench.schedule.peers.base import EpochPolicy, row_limit
from dynbench.schedule.peers.row_peers import best_fit_decreasing
from dynbench.schedule.plan import IntArray, by_owner, floats, integers, stable_argsort
from dynbench.schedule.policy import Problem


class TokenBudget(EpochPolicy):
    """T is the least budget under which the mean step has at least B samples; of packed rows the capacity, if any.

    An incomplete last step of padded batches is dropped; one of packed rows is kept, split for all ranks.

    Raises:
        NothingFits: a sample is longer than every capacity allows.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        descending = np.sort(problem.padded_lengths)[::-1]
        made = _packed(problem, descending) if problem.packed else _padded(problem, descending)
        self.budget_tokens, self._parts, self._last = made
        """Each micro-batch as positions in the order of falling length, and how many of them are an incomplete step."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps until the next epoch begins, whether or not all samples were taken."""
        return len(self._parts) // self.problem.workers

    def micro_batches(self, epoch: int) -> list[IntArray]:
        """In random order, an incomplete step last; samples of equal length change places from epoch to epoch."""
        arrival = self.problem.data_order().permutation(epoch)
        ordered = arrival[stable_argsort(-self.problem.padded_lengths[arrival])]
        whole = len(self._parts) - self._last
        order = np.random.default_rng([self.problem.seed, epoch, 1]).permutation(whole)
        return [ordered[self._parts[i]] for i in [*order, *range(whole, len(self._parts))]]


def _padded(problem: Problem, descending: IntArray) -> tuple[int, list[IntArray], int]:
    """The budget, padded tokens, and the batches; no step is kept that is incomplete."""
    limits = problem.capacity.limits(problem.workers, descending).min(axis=0)
    if limits[0] < 1:
        raise NothingFits(f"a sample of {descending[0]} tokens is longer than a rank's capacity allows")
    most = problem.global_batch
    batches = max(problem.workers, len(descending) * problem.workers // most)
    longest = int(descending[0])

    def enough(budget_tokens: int) -> bool:
        return len(_cuts(descending, limits, budget_tokens)) <= batches

    budget_tokens = longest + bisect_left(range(longest, longest * most), True, key=enough)
    parts = np.split(np.arange(len(descending)), _cuts(descending, limits, budget_tokens)[1:])
    # The parts of a batch keep to the budget and to the capacities as it does; equal cuts of the epoch may not.
    while len(parts) < problem.workers:
        widest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[widest : widest + 1] = np.array_split(parts[widest], 2)
    return budget_tokens, parts, 0


def _cuts(descending: IntArray, limits: IntArray, budget_tokens: int) -> list[int]:
    """First positions of the batches: from the longest on, each as many samples as budget and capacity allow."""
    sizes = np.minimum(budget_tokens // descending, limits).tolist()
    starts, position = [], 0
    while position < len(sizes):
        starts.append(position)
        position += sizes[position]
    return starts


def _packed(problem: Problem, descending: IntArray) -> tuple[int, list[IntArray], int]:
    """The budget, tokens, the rows, and how many of them are the last step."""
    ranks, budget_tokens = problem.workers, row_limit(problem)
    if budget_tokens == UNLIMITED:
        rows = _alike(descending, len(descending) // problem.global_batch * ranks)
        budget_tokens = max(int(descending[row].sum()) for row in rows)
    else:
        rows = _fewest(descending, budget_tokens, ranks)
    # The rows of most samples are left over for the last step, where they are split until every rank has one.
    rows.sort(key=len)
    whole = len(rows) // ranks * ranks
    if len(descending) < -(-len(rows) // ranks) * ranks:
        rows = rows[:whole]
    while len(rows) % ranks:
        _, _, _, split = max((len(row) > 1, at >= whole, len(row), at) for at, row in enumerate(rows))
        rows.append(rows[split][1::2])
        rows[split] = rows[split][::2]
    return budget_tokens, rows, len(rows) - whole


def _fewest(descending: IntArray, budget_tokens: int, ranks: int) -> list[IntArray]:
    """Rows of the fewest steps that were found: alike if that keeps to the budget, else as best fit leaves them."""
    rows = best_fit_decreasing(descending.tolist(), budget_tokens)
    for number in range(len(rows), min(-(-len(rows) // ranks) * ranks, len(descending)) + 1):
        alike = _alike(descending, number)
        if max(int(descending[row].sum()) for row in alike) <= budget_tokens:
            return alike
    return [integers(row) for row in rows]


def _alike(descending: IntArray, number: int) -> list[IntArray]:
    """So many rows of nearly as many tokens each."""
    work = Work(floats(descending), descending, np.ones(number), np.zeros(number))
    owners = exchanged(work, longest_first(work), float(descending.sum()) / number)
    return by_owner(np.arange(len(descending)), owners, number)
