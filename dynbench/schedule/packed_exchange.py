"""Exchanges of samples between pairs of ranks that lower the slower one, all pairs at once (local search)."""

from __future__ import annotations

import numpy as np

from dynbench.schedule.capacity import BoolArray
from dynbench.schedule.packed_deal import ROUNDING, Work
from dynbench.schedule.plan import IntArray

TURNS = 64
"""Rounds at most."""
TRIED = 2**17
"""Exchanges weighed at most, by which many ranks get fewer rounds, but never fewer than `LEAST_TURNS`."""
LEAST_TURNS = 8
PAIRINGS = 4
"""Ways to pair the ranks that are tried before the search is at its end."""
CANDIDATES = 32
"""Samples of a rank, about its cheapest ones, among which exchanges are sought."""


def exchanged(work: Work, owners: IntArray, floor: float, *, limited: bool = True) -> IntArray:
    """The deal after exchanges of a sample for another, or for none, that make the slower rank of a pair faster.

    Args:
        work: what is dealt.
        owners: the rank of each sample, shape [B]; within the limits where these count.
        floor: no deal has a smaller maximum.
        limited: whether the limits count.
    """
    if work.ranks == 1:
        return owners
    table, idle = _Table(work, owners, limited=limited and work.limits is not None), 0
    pairings = min(PAIRINGS, work.ranks - work.ranks // 2)
    for turn in range(min(TURNS, max(LEAST_TURNS, TRIED // table.tried))):
        if table.peak <= floor * (1 + ROUNDING) or idle == pairings:
            break
        idle = 0 if table.exchange(turn % pairings) else idle + 1
    return table.owners()


class _Table:
    """The samples of each rank as a row of a table; empty places hold the sample B, which weighs nothing.

    Args:
        work: what is dealt.
        owners: the rank of each sample, shape [B].
        limited: whether exchanges keep to the limits.
    """

    def __init__(self, work: Work, owners: IntArray, *, limited: bool) -> None:
        self._work, self._empty = work, len(owners)
        counts = np.bincount(owners, minlength=work.ranks)
        by_rank = np.argsort(owners, kind="stable")
        places = np.arange(self._empty) - np.repeat(np.cumsum(counts) - counts, counts)
        # A few more places than the fullest rank needs.
        self._rows = np.full((work.ranks, int(counts.max()) + PAIRINGS), self._empty)
        self._rows[owners[by_rank], places] = by_rank
        self._weights, self._lengths = np.append(work.weights, 0.0), np.append(work.lengths, 0)
        self._limits = None
        if limited:
            assert work.limits is not None
            self._limits = np.append(work.limits, np.full((work.ranks, 1), np.iinfo(np.int64).max), axis=1)
        self._spent = work.spent(owners)

    @property
    def peak(self) -> float:
        """The slowest rank's time."""
        return float((self._spent / self._work.speeds).max())

    def owners(self) -> IntArray:
        """The rank of each sample, shape [B]."""
        found = np.empty(self._empty, dtype=np.int64)
        ranks, places = np.nonzero(self._rows < self._empty)
        found[self._rows[ranks, places]] = ranks
        return found

    @property
    def tried(self) -> int:
        """Exchanges weighed in a round."""
        return len(self._rows) // 2 * min(CANDIDATES, self._rows.shape[1]) ** 2

    def exchange(self, shift: int) -> bool:
        """The best exchange of every pair of a slow and a fast rank; whether one was made.

        Args:
            shift: by which the fast ranks are moved against the slow ones; 0 pairs the slowest with the fastest.
        """
        speeds = self._work.speeds
        order = np.argsort(-self._spent / speeds, kind="stable")
        half = len(order) // 2
        slow, rest = order[:half], order[half:][::-1]
        fast = rest[(np.arange(half) + shift) % len(rest)]
        slow_speed, fast_speed = speeds[slow], speeds[fast]
        counts = (self._rows < self._empty).sum(axis=1)
        out, back = self._places(slow, counts), self._places(fast, counts)
        mine, theirs = self._rows[slow[:, None], out], self._rows[fast[:, None], back]
        # A rank that has as few samples as it may gives none for nothing.
        kept = (counts[slow] <= self._work.least)[:, None] & (theirs == self._empty)
        given = self._weights[mine][:, :, None] - np.where(kept, np.inf, self._weights[theirs])[:, None, :]
        level = (self._spent[slow] * fast_speed - self._spent[fast] * slow_speed) / (slow_speed + fast_speed)
        distance = np.abs(given - level[:, None, None])
        if self._limits is not None:
            distance[self._overflows(slow, fast, mine, theirs)] = np.inf
        best = distance.reshape(half, -1).argmin(axis=1)
        pair, (first, second) = np.arange(half), np.divmod(best, back.shape[1])
        moved = np.where(np.isinf(distance[pair, first, second]), 0.0, given[pair, first, second])
        after = np.maximum((self._spent[slow] - moved) / slow_speed, (self._spent[fast] + moved) / fast_speed)
        better = np.flatnonzero(after < self._spent[slow] / slow_speed * (1 - ROUNDING))
        slow, fast, first, second = slow[better], fast[better], first[better], second[better]
        self._rows[slow, out[better, first]] = theirs[better, second]
        self._rows[fast, back[better, second]] = mine[better, first]
        self._spent[slow] -= moved[better]
        self._spent[fast] += moved[better]
        return len(better) > 0

    def _places(self, ranks: IntArray, counts: IntArray) -> IntArray:
        """Columns of the last samples of these ranks and of an empty place, shape [P, k]."""
        width = self._rows.shape[1]
        last = np.minimum(counts[ranks] + 1, width)
        wide = min(CANDIDATES, width)
        columns: IntArray = np.maximum(last - wide, 0)[:, None] + np.arange(wide)
        return columns

    def _overflows(self, slow: IntArray, fast: IntArray, mine: IntArray, theirs: IntArray) -> BoolArray:
        """Exchanges after which a rank may hold too many tokens, shape [P, k, k]."""
        gained = self._lengths[theirs][:, None, :] - self._lengths[mine][:, :, None]
        over: BoolArray = (gained > self._room(slow, theirs)[:, None, :]) | (
            -gained > self._room(fast, mine)[:, :, None]
        )
        return over

    def _room(self, ranks: IntArray, more: IntArray) -> IntArray:
        """Tokens that these ranks can take besides what they hold, once they hold one more sample, shape [P, k]."""
        assert self._limits is not None
        rows, ranks = self._rows[ranks], ranks[:, None]
        limit = np.minimum(self._limits[ranks, rows].min(axis=1)[:, None], self._limits[ranks, more])
        room: IntArray = limit - self._lengths[rows].sum(axis=1)[:, None]
        return room
