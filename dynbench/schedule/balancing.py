"""Balanced number partitioning: samples to ranks whose cost is the sum of their samples', the slowest rank least.

On uniform machines that is NP-hard. Longest first (LPT): Graham, SIAM J. Appl. Math. 17, 1969, section 5; for ranks of
unequal speed Gonzalez, Ibarra and Sahni, SIAM J. Comput. 6, 1977. Then exchanges between pairs of ranks (`exchanged`),
and for few samples a search of all deals with branch and bound, up to a number of nodes (`Search`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from dynbench.schedule.capacity import BoolArray
from dynbench.schedule.plan import FloatArray, IntArray, owners_of, stable_argsort


def deal_longest_first(costs: FloatArray, ranks: int, each: int | None = None) -> list[list[int]]:
    """Each job to the least loaded rank; every rank gets one.

    Args:
        costs: shape [M], at least as many as ranks.
        ranks: G.
        each: jobs that every rank gets, when fixed (M = G * each).

    Returns:
        Per rank its jobs, dearest first.
    """
    jobs, prices = stable_argsort(-costs).tolist(), costs.tolist()
    dealt = [[job] for job in jobs[:ranks]]
    open_ranks = [(prices[job], rank) for rank, job in enumerate(jobs[:ranks])]
    heapq.heapify(open_ranks)
    for job in jobs[ranks:]:
        load, rank = open_ranks[0]
        dealt[rank].append(job)
        if len(dealt[rank]) == each:
            heapq.heappop(open_ranks)
        else:
            heapq.heapreplace(open_ranks, (load + prices[job], rank))
    return dealt


def deal_to_first_finish(costs: FloatArray, speeds: FloatArray, surcharge: float = 0.0) -> list[list[int]]:
    """As `deal_longest_first`, each job to the rank of these relative speeds, shape [G], that would end it first.

    Args:
        costs: shape [M].
        speeds: shape [G].
        surcharge: what `costs` hold for every job and a rank's first job does not pay.

    Returns:
        Per rank its jobs, dearest first.
    """
    order = stable_argsort(-costs)
    dealt: list[list[int]] = [[] for _ in speeds]
    load = np.full(len(speeds), -surcharge)
    idle = len(speeds)
    for place, job in enumerate(order.tolist()):
        finish = (load + costs[job]) / speeds
        if idle == len(order) - place:
            finish[[bool(own) for own in dealt]] = np.inf
        rank = int(finish.argmin())
        load[rank] += costs[job]
        idle -= not dealt[rank]
        dealt[rank].append(job)
    return dealt


SEARCHED = 12
"""Samples up to which all deals are searched."""
NODES = 1500
"""Of that search, at most; about 2 ms."""
ROUNDING = 1e-12


@dataclass(frozen=True)
class Work:
    """What is dealt, dearest first, and to whom.

    Args:
        weights: what each sample adds to its rank's cost, falling, shape [B].
        lengths: tokens, shape [B].
        speeds: of the ranks, shape [G].
        fixed: what each rank pays besides, shape [G].
        limits: most tokens of a rank that holds the sample, shape [G, B]; None for no limit.
        least: samples that every rank needs.
    """

    weights: FloatArray
    lengths: IntArray
    speeds: FloatArray
    fixed: FloatArray
    limits: IntArray | None = None
    least: int = 1

    @property
    def ranks(self) -> int:
        """Their number (G)."""
        return len(self.speeds)

    def spent(self, owners: IntArray) -> FloatArray:
        """What each rank pays in a deal, shape [G]."""
        spent: FloatArray = np.bincount(owners, self.weights, self.ranks) + self.fixed
        return spent

    def peak(self, owners: IntArray) -> float:
        """The slowest rank's time."""
        return float((self.spent(owners) / self.speeds).max())

    def fits(self, owners: IntArray) -> bool:
        """Whether a deal keeps to the limits."""
        if self.limits is None:
            return True
        tokens = np.bincount(owners, self.lengths, self.ranks)
        return bool(np.all(tokens[owners] <= self.limits[owners, np.arange(len(owners))]))


def longest_first(work: Work) -> IntArray:
    """The rank of each sample, shape [B]: each to the rank that would end it first; the limits are not looked at."""
    if np.ptp(work.speeds) == 0:
        dealt = deal_longest_first(work.weights, work.ranks)
    else:
        dealt = deal_to_first_finish(work.weights, work.speeds, -float(work.fixed.min()))
    counts, owners = [len(jobs) for jobs in dealt], owners_of(dealt)
    while min(counts) < work.least:
        poor, rich = int(np.argmin(counts)), int(np.argmax(counts))
        owners[np.flatnonzero(owners == rich)[-1]] = poor
        counts[poor], counts[rich] = counts[poor] + 1, counts[rich] - 1
    return owners


def within_limits(work: Work) -> IntArray | None:
    """A deal that keeps to the limits, shape [B]; None where none was found.

    Longest samples first, each to the rank with room that would end it first; where this leaves a sample over, to the
    one whose room it fills best (best fit decreasing: Johnson, J. Comput. Syst. Sci. 8, 1974).
    """
    balanced = _by_room(work, tight=False)
    return _by_room(work, tight=True) if balanced is None else balanced


def _by_room(work: Work, *, tight: bool) -> IntArray | None:
    assert work.limits is not None
    owners: list[int] = []
    counts, tokens = np.zeros((2, work.ranks))
    limits, spent = np.full(work.ranks, np.inf), work.fixed.copy()
    for sample, weight in enumerate(work.weights.tolist()):
        length = work.lengths[sample]
        lower = np.minimum(limits, work.limits[:, sample])
        left = lower - tokens - length
        allowed = left >= 0
        if np.maximum(work.least - counts, 0).sum() >= len(work.weights) - sample:
            allowed &= counts < work.least
        if not allowed.any():
            return None
        rank = int(np.where(allowed, left if tight else (spent + weight) / work.speeds, np.inf).argmin())
        owners.append(rank)
        limits[rank] = lower[rank]
        tokens[rank] += length
        spent[rank] += weight
        counts[rank] += 1
    return np.array(owners)


class Search:
    """All deals, the best first, cut where they cannot be better than the best one met.

    Args:
        work: what is dealt.
        peak: of the best deal known; infinite where there is none.
        floor: no deal has a smaller maximum.
    """

    def __init__(self, work: Work, peak: float, floor: float) -> None:
        self._work, self._peak, self._floor = work, peak, floor
        self._left = np.append(np.cumsum(work.weights[::-1])[::-1], 0.0).tolist()
        self._spent, self._counts = work.fixed.tolist(), [0] * work.ranks
        self._limits, self._tokens = [np.inf] * work.ranks, [0] * work.ranks
        self._kinds = [(speed, work.limits is None or tuple(work.limits[rank])) for rank, speed in self._speeds()]
        self._path = [0] * len(work.weights)
        self._nodes = 0
        self.best: IntArray | None = None
        """A deal better than the one known, if any was met."""
        self.proven = peak <= floor * (1 + ROUNDING) or not self._place(0) or self._nodes <= NODES
        """Whether no deal is better than the best one known."""

    def _speeds(self) -> list[tuple[int, float]]:
        return list(enumerate(self._work.speeds.tolist()))

    def _place(self, sample: int) -> bool:
        """Deal the samples from this one on in every way that may be better; True where the search is to end."""
        work = self._work
        if sum(max(work.least - count, 0) for count in self._counts) > len(self._path) - sample:
            return False
        if sample == len(self._path):
            self.best = np.array(self._path)
            self._peak = work.peak(self.best)
            return self._peak <= self._floor * (1 + ROUNDING)
        self._nodes += 1
        if self._nodes > NODES:
            return True
        limit = self._peak * (1 - ROUNDING)
        spare = sum(max(limit * speed - self._spent[rank], 0.0) for rank, speed in self._speeds())
        if spare < self._left[sample]:
            return False
        weight, length = float(work.weights[sample]), int(work.lengths[sample])
        met = set()
        for after, rank in sorted(((self._spent[rank] + weight) / speed, rank) for rank, speed in self._speeds()):
            limit_before, tokens = self._limits[rank], self._tokens[rank]
            lower = limit_before if work.limits is None else min(limit_before, int(work.limits[rank, sample]))
            alike = (self._kinds[rank], self._spent[rank], lower, tokens, self._counts[rank])
            if after >= limit:
                break
            if lower < tokens + length or alike in met:
                continue
            met.add(alike)
            before = self._spent[rank]
            self._spent[rank], self._limits[rank], self._tokens[rank] = before + weight, lower, tokens + length
            self._counts[rank] += 1
            self._path[sample] = rank
            ended = self._place(sample + 1)
            self._spent[rank], self._limits[rank], self._tokens[rank] = before, limit_before, tokens
            self._counts[rank] -= 1
            if ended:
                return True
            limit = self._peak * (1 - ROUNDING)
        return False


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
        by_rank = stable_argsort(owners)
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
        ranks, places = np.nonzero(self._rows < self._empty)
        return ranks[np.argsort(self._rows[ranks, places])]

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
        order = stable_argsort(-self._spent / speeds)
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
