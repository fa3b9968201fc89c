"""Samples to ranks so that the slowest is as fast as it can be, where a rank's cost is the sum of its samples'.

That is balanced number partitioning on uniform machines, which is NP-hard: longest first (`longest_first`), then
exchanges between pairs of ranks (`packed_exchange`), and for few samples a search of all deals with branch and bound,
as far as it gets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynbench.schedule.longest_first import deal_longest_first, deal_to_first_finish
from dynbench.schedule.plan import FloatArray, IntArray

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
        _, dealt = deal_longest_first(work.weights, work.ranks)
    else:
        _, dealt = deal_to_first_finish(work.weights, work.speeds, -float(work.fixed.min()))
    counts = [len(jobs) for jobs in dealt]
    owners = np.empty(len(work.weights), dtype=np.int64)
    owners[np.concatenate(dealt)] = np.repeat(np.arange(work.ranks), counts)
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
    owners = np.empty(len(work.weights), dtype=np.int64)
    counts, spent = np.zeros(work.ranks, dtype=np.int64), work.fixed.copy()
    limits, tokens = np.full(work.ranks, np.inf), np.zeros(work.ranks)
    for sample, (weight, length) in enumerate(zip(work.weights.tolist(), work.lengths.tolist(), strict=True)):
        lower = np.minimum(limits, work.limits[:, sample])
        left = lower - tokens - length
        allowed = left >= 0
        if np.maximum(work.least - counts, 0).sum() >= len(owners) - sample:
            allowed &= counts < work.least
        if not allowed.any():
            return None
        rank = int(np.where(allowed, left if tight else (spent + weight) / work.speeds, np.inf).argmin())
        owners[sample], limits[rank] = rank, lower[rank]
        tokens[rank] += length
        spent[rank] += weight
        counts[rank] += 1
    return owners


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
