"""Packers of other trainers: rows of at most so many tokens (`base.row_tokens`), as many as come of it.

Those of one global batch give every rank equally many rows, row i to rank i modulo G. Those of the whole data set give
every rank one row a step. No sample may be longer than a row.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect, bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from math import inf
from operator import itemgetter
from typing import ClassVar

import numpy as np

from dynbench.errors import UsageError
from dynbench.schedule.peers.base import EpochPolicy, check_equal_counts, row_tokens
from dynbench.schedule.plan import IntArray, StepPlan, integers
from dynbench.schedule.policy import BatchPolicy, Coverage, Problem

Rows = list[list[int]]
_Items = list[tuple[int, int]]
"""Pairs (length, what tells equal ones apart), ascending."""


def next_fit(lengths: Sequence[int], row_tokens: int) -> Rows:
    """In the order given, a new row where the next sample does not fit: Megatron's `DpBalancedScheduler`."""
    rows: Rows = []
    room = 0
    for position, length in enumerate(lengths):
        if length > room or not rows:
            rows.append([])
            room = row_tokens
        rows[-1].append(position)
        room -= length
    return rows


def first_fit(lengths: Sequence[int], row_tokens: int, most: int) -> Rows:
    """In the order given, each to the first row with room and fewer than `most` samples: Axolotl's multipack."""
    rows: Rows = []
    # A tree of the largest room below each node; leaf i, at `leaves` + i, is row i's.
    leaves = 1 << (len(lengths) - 1).bit_length()
    rooms = [row_tokens] * (2 * leaves)
    for position, length in enumerate(lengths):
        node = 1
        while node < leaves:
            node = 2 * node if rooms[2 * node] >= length else 2 * node + 1
        if node - leaves == len(rows):
            rows.append([])
        row = rows[node - leaves]
        row.append(position)
        rooms[node] = rooms[node] - length if len(row) < most else 0
        while node := node // 2:
            rooms[node] = max(rooms[2 * node], rooms[2 * node + 1])
    return rows


def best_fit_decreasing(lengths: Sequence[int], row_tokens: int) -> Rows:
    """Longest first, each to the row that it fills best, of equal ones that which has waited longest: TRL's `bfd`."""
    rows: Rows = []
    rooms: list[int] = []
    waiting: defaultdict[int, deque[list[int]]] = defaultdict(deque)
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect_left(rooms, lengths[position])
        if at < len(rooms):
            room = rooms[at]
            row = waiting[room].popleft()
            if not waiting[room]:
                del rooms[at]
        else:
            room, row = row_tokens, []
            rows.append(row)
        row.append(position)
        room -= lengths[position]
        if room and not waiting[room]:
            insort(rooms, room)
        waiting[room].append(row)
    return rows


def modified_first_fit_decreasing(lengths: Sequence[int], row_tokens: int) -> Rows:
    """Modified first fit decreasing (Johnson and Garey, J. Complexity 1, 1985) as NeMo-RL has it.

    Its last phase gives each sample that is left to the emptiest row, not to the first that holds it.
    """
    ascending = sorted((length, position) for position, length in enumerate(lengths))
    # Of equal lengths the first one is taken, but among the small the last.
    medium = sorted((n, -at) for n, at in ascending if 3 * n > row_tokens >= 2 * n)
    small = [(n, at) for n, at in ascending if 6 * n > row_tokens >= 3 * n]
    large = sorted((-n, at) for n, at in ascending if 2 * n > row_tokens)
    rows, rooms = [[at] for _, at in large], [row_tokens + n for n, _ in large]
    for row in range(len(rows)):
        if found := _take_largest(medium, rooms[row]):
            rows[row].append(-found[1])
            rooms[row] -= found[0]
    for row in reversed(range(len(rows))):
        if len(rows[row]) == 1 and len(small) > 1 and small[0][0] + small[1][0] <= rooms[row]:
            first = small.pop(0)
            second = _take_largest(small, rooms[row] - first[0])
            assert second is not None
            rows[row] += [first[1], second[1]]
            rooms[row] -= first[0] + second[0]
    rest = sorted([*medium, *((n, -at) for n, at in small), *((n, -at) for n, at in ascending if 6 * n <= row_tokens)])
    for row in range(len(rows)):
        while found := _take_largest(rest, rooms[row]):
            rows[row].append(-found[1])
            rooms[row] -= found[0]
    return rows + _emptiest_first(reversed(rest), row_tokens)


def _take_largest(items: _Items, room: int) -> tuple[int, int] | None:
    at = bisect(items, (room, inf))
    return items.pop(at - 1) if at else None


def _emptiest_first(falling: Iterable[tuple[int, int]], row_tokens: int) -> Rows:
    piles: list[tuple[int, list[int]]] = []
    for length, position in falling:
        total, pile = piles.pop(0) if piles and piles[0][0] + length <= row_tokens else (0, [])
        pile.append(-position)
        insort(piles, (total + length, pile), key=itemgetter(0))
    return [pile for _, pile in piles]


def whole_rounds(rows: Rows, sources: Iterable[int], ranks: int) -> Rows:
    """The rows and more, until all ranks run equally many.

    Each further row is the last sample of a source.

    Args:
        rows: of at least as many samples as rows are needed.
        sources: rows in the order in which they give samples, each until it has one left.
        ranks: G.
    """
    for source in sources:
        while len(rows) % ranks and len(rows[source]) > 1:
            rows.append([rows[source].pop()])
    return rows


MAPPED = 1000
"""Samples that TRL packs together: as many as `datasets` maps at a time."""
GROUP, MOST = 100_000, 200
"""Samples that Axolotl packs together, and the most that it puts into a row."""


class RowPeer(BatchPolicy):
    """Packs each of static's batches for itself.

    Raises:
        UsageError: B is no multiple of G, so that there may be too few samples for equally many rows.
        NothingFits: a sample is longer than a row.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        check_equal_counts(self.name, problem)
        self.row_tokens = row_tokens(problem)

    @abstractmethod
    def rows(self, lengths: list[int]) -> Rows:
        """Positions per row, a multiple of G rows."""

    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        """One plan per batch."""
        ranks, plans = self.problem.workers, []
        for step, batch in enumerate(batches, first_step):
            rows = [batch[np.array(row)] for row in self.rows(self.problem.lengths[batch].tolist())]
            plans.append(StepPlan(step, tuple(tuple(rows[rank::ranks]) for rank in range(ranks)), packed=True))
        return plans


class NemoRL(RowPeer):
    """NeMo-RL's sequence packing by `modified_first_fit_decreasing`, its recipes' algorithm.

    What is missing to equally many rows is taken from the rows of most samples. Where no sample is left for the last
    phase upstream may make an empty row, which is left out here.
    """

    def rows(self, lengths: list[int]) -> Rows:
        """As the base."""
        rows = modified_first_fit_decreasing(lengths, self.row_tokens)
        fullest = sorted(range(len(rows)), key=lambda at: (len(rows[at]), at), reverse=True)
        return whole_rounds(rows, fullest, self.problem.workers)


class Megatron(RowPeer):
    """Megatron Core's `DpBalancedScheduler`: next fit, and what is missing to equally many rows from the last ones."""

    def rows(self, lengths: list[int]) -> Rows:
        """As the base."""
        rows = next_fit(lengths, self.row_tokens)
        return whole_rounds(rows, reversed(range(len(rows))), self.problem.workers)


class DatasetPeer(EpochPolicy):
    """Packs the data set once; every epoch draws the rows in random order.

    Raises:
        NothingFits: a sample is longer than a row.
        UsageError: fewer rows than ranks.
    """

    repeats: ClassVar[bool]
    """Whether an incomplete last step is filled with the epoch's first rows; it is dropped where not."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        tokens = row_tokens(problem)
        self.rows = [integers(row) for row in self.pack(tokens)]
        check_rows(self.name, len(self.rows), tokens, problem.workers)

    @abstractmethod
    def pack(self, tokens: int) -> Rows:
        """Ids per row of at most so many tokens."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps until the next epoch begins."""
        ranks = self.problem.workers
        return -(-len(self.rows) // ranks) if self.repeats else len(self.rows) // ranks

    def micro_batches(self, epoch: int) -> list[IntArray]:
        """Rows in random order."""
        order = np.random.default_rng([self.problem.seed, epoch]).permutation(len(self.rows))
        return [self.rows[at] for at in np.resize(order, self.steps_per_epoch * self.problem.workers)]


class Trl(DatasetPeer):
    """TRL's packing `bfd`: best fit decreasing of a thousand samples at a time, in the order of the file."""

    repeats = True

    def pack(self, tokens: int) -> Rows:
        """As the base."""
        lengths = self.problem.lengths.tolist()
        return [
            [first + at for at in row]
            for first in range(0, len(lengths), MAPPED)
            for row in best_fit_decreasing(lengths[first : first + MAPPED], tokens)
        ]


class Axolotl(DatasetPeer):
    """Axolotl's multipack: first fit in random order; upstream packs anew for each epoch."""

    repeats = False

    def pack(self, tokens: int) -> Rows:
        """As the base."""
        order = self.problem.data_order().permutation(0)
        groups = [order[first : first + GROUP] for first in range(0, len(order), GROUP)]
        return [
            group[np.array(row)].tolist()
            for group in groups
            for row in first_fit(self.problem.lengths[group].tolist(), tokens, MOST)
        ]


class Torchtitan(EpochPolicy):
    """torchtitan's concat-then-split: each rank's part of the file, end to end, cut into full rows.

    A sample that lies across the end of a row is cut, so that the ids of the plans are those of pieces (`lengths`).
    Ranks end with the one of fewest rows; what is left over is lost.

    Raises:
        NothingFits: a sample is longer than a row.
        UsageError: fewer rows than ranks.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.extra is not None:
            raise UsageError(
                f"{self.name} cuts samples into pieces, of which no second number is known",
                "Leave the second column out, or plan with packed, trl or axolotl.",
            )
        tokens = row_tokens(problem)
        shares = np.array_split(np.arange(len(problem.lengths)), problem.workers)
        self._steps = min(int(problem.lengths[share].sum()) // tokens for share in shares)
        check_rows(self.name, self._steps * problem.workers, tokens, problem.workers)
        cuts = np.arange(1, self._steps + 1) * tokens
        samples, lengths, done = [], [], 0
        self._rows: list[list[IntArray]] = []
        for share in shares:
            ends = np.cumsum(problem.lengths[share])
            stops = np.union1d(ends[ends < cuts[-1]], cuts)
            pieces, done = np.arange(done, done + len(stops)), done + len(stops)
            self._rows.append(np.split(pieces, np.searchsorted(stops, cuts[:-1]) + 1))
            samples.append(share[np.searchsorted(ends, stops)])
            lengths.append(np.diff(stops, prepend=0))
        self._samples = np.concatenate(samples)
        self._lengths = np.concatenate(lengths)

    @property
    def lengths(self) -> IntArray:
        """Tokens of each piece."""
        return self._lengths

    @property
    def steps_per_epoch(self) -> int:
        """Steps until the next epoch begins."""
        return self._steps

    def micro_batches(self, epoch: int) -> list[IntArray]:
        """The same in every epoch."""
        return [own[step] for step in range(self._steps) for own in self._rows]

    @property
    def coverage(self) -> Coverage:
        """Counted."""
        pieces = np.bincount(self._samples, minlength=len(self.problem.lengths))
        part = self._lengths < self.problem.lengths[self._samples]
        return Coverage(lost=int((pieces == 0).sum()), cut=len(np.unique(self._samples[part])))


def check_rows(name: str, rows: int, tokens: int, ranks: int) -> None:
    """Refuse an epoch without a step.

    Raises:
        UsageError: fewer rows than ranks.
    """
    if rows < ranks:
        raise UsageError(f"{name}: an epoch of less than a row of {tokens} tokens for each of {ranks} ranks")
