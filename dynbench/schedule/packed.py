"""Packed rows of one global batch: no padding, so a rank's cost is the sum of its samples' and of its rows' price.

Where ranks synchronise in every row, the sum over the slots of rows of the slowest rank's is made least. Without
padding the work is constant, so a plan is optimal where all rows of a slot last alike, however long. Where the longest
sample lasts longer than that, a slot is filled to its length, and the rest is dealt to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import numpy as np

from dynbench.errors import NothingFits
from dynbench.schedule import capacity
from dynbench.schedule.accumulation import TOO_LARGE, Accumulation, best_grouping
from dynbench.schedule.balancing import (
    ROUNDING,
    SEARCHED,
    Search,
    Work,
    deal_longest_first,
    exchanged,
    longest_first,
    within_limits,
)
from dynbench.schedule.capacity import UNLIMITED, BoolArray
from dynbench.schedule.evaluate import packed_bound
from dynbench.schedule.partition_search import sort_longest_first
from dynbench.schedule.plan import Exactness, FloatArray, IntArray, StepPlan, by_owner, single, stable_argsort
from dynbench.schedule.policy import Problem, check_enough_samples

Rows = list[list[IntArray]]
"""Per rank its rows, slot by slot: positions of samples, dearest first."""


def rows_by_slot(work: Work, slots: int) -> Rows | None:
    """So many rows of every rank; None where no way was found to keep to the limits.

    Args:
        work: of one row per rank, whose limits are the same for all ranks; at least `slots` samples per rank.
        slots: rows of every rank.
    """
    left = np.arange(len(work.weights))
    rows: Rows = [[] for _ in work.speeds]
    fastest = int(work.speeds.argmax())
    while slots > 1:
        longest = (work.fixed[fastest] + work.weights[left[0]]) / work.speeds[fastest]
        if longest <= (work.weights[left].sum() / slots + work.fixed.sum()) / work.speeds.sum():
            break
        taken = _filled(work, left, longest, len(left) - (slots - 1) * work.ranks)
        for rank, row in enumerate(taken):
            rows[rank].append(left[row])
        left, slots = np.delete(left, np.concatenate(taken)), slots - 1
    dealt = _balanced(work, left, slots)
    return None if dealt is None else [own + dealt[rank] for rank, own in enumerate(rows)]


def _filled(work: Work, left: IntArray, lasts: float, most: int) -> list[list[int]]:
    """Rows that end by then, one per rank, of at most so many samples together, as places in `left`.

    The fastest rank runs the longest sample alone; the rank with most room takes the longest that it has room for.
    """
    weights, lengths = work.weights[left], work.lengths[left]
    room = lasts * work.speeds - work.fixed
    fastest = int(work.speeds.argmax())
    rows: list[list[int]] = [[] for _ in room]
    rows[fastest], room[fastest], place, idle = [0], -np.inf, 1, work.ranks - 1
    while room.max() > 0:
        rank = int(room.argmax())
        place = max(place, int(np.searchsorted(-weights, -room[rank])))
        if place >= len(left) - idle or sum(map(len, rows)) + idle >= most + (not rows[rank]):
            break
        row = [*rows[rank], place]
        if work.limits is not None and lengths[row].sum() > work.limits[rank, left[row]].min():
            room[rank] = -np.inf
            continue
        idle -= not rows[rank]
        rows[rank].append(place)
        room[rank], place = room[rank] - weights[place], place + 1
    for row in rows:
        if not row:
            row.append(len(left) - idle)
            idle -= 1
    return rows


def _balanced(work: Work, left: IntArray, slots: int) -> Rows | None:
    """Rows that last alike, as far as the samples allow; in a slot those that are neighbours in cost."""
    every = Work(
        work.weights[left],
        work.lengths[left],
        np.tile(work.speeds, slots),
        np.tile(work.fixed, slots),
        None if work.limits is None else np.tile(work.limits[:, left], (slots, 1)),
    )
    mean = float((every.weights.sum() + every.fixed.sum()) / every.speeds.sum())
    owners: IntArray | None = exchanged(every, longest_first(every), mean, limited=False)
    if owners is None or not every.fits(owners):
        owners = within_limits(every)
        if owners is None:
            return None
        owners = exchanged(every, owners, mean)
    numbers, spent = np.arange(slots * work.ranks).reshape(slots, work.ranks), every.spent(owners)
    dearest_first = stable_argsort(-spent[numbers], axis=0)
    grid = np.take_along_axis(numbers, dearest_first, axis=0)
    if np.ptp(work.speeds) == 0:
        grid = stable_argsort(-spent).reshape(slots, work.ranks)
    return [[left[owners == number] for number in grid[:, rank].tolist()] for rank in range(work.ranks)]


class PackedRows:
    """The batch dealt anew for the least maximum of packed cost; the samples of a row stand dearest first.

    One row per rank: exact where the bound is met or few samples let all deals be searched, else a heuristic. With
    `micro_batches` N every rank runs N rows, with auto as many as the capacities ask for: a heuristic but for very few
    samples (`best_grouping`). Where ranks synchronise in every row, all run as many (`rows_by_slot`).

    Args:
        problem: of packed micro-batches.

    Raises:
        UsageError: fewer samples than ranks times N.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, cost = problem, problem.cost
        self._squared = cost.cost_type == "tokens_sq"
        self._further = cost.fixed + cost.surcharge
        self._rows = None if problem.micro_batches == "auto" else problem.micro_batches
        check_enough_samples(problem)

    def plan(self, ids: IntArray, step: int) -> StepPlan:
        """The plan of a step's samples, shape [B].

        Raises:
            NothingFits: the capacities cannot hold them, or no way to pack them was found.
        """
        problem = self._problem
        if problem.extra is None:
            ids = ids[sort_longest_first(problem.lengths[ids])]
        else:
            ids = ids[stable_argsort(-problem.weights(ids))]
        work, floor = self._work(ids, step), self._floor(ids)
        if self._rows in (1, None):
            owners, proven = self._one_row(work if self._rows else replace(work, limits=None), floor, step)
            if self._rows or work.fits(owners):
                return StepPlan(step, single(by_owner(ids, owners, problem.workers)), proven, packed=True)
        rows = self._all_tried(work, problem.extra_of(ids), step)
        exact: Exactness = "none" if rows is None else "maximum"
        if rows is None:
            rows = self._by_slot(work, step) if problem.objective == "slots" else self._several(work, floor, step)
        shares = tuple(tuple(ids[row] for row in share) for share in rows)
        return StepPlan(step, shares, exact, packed=True)

    def _limits(self, ids: IntArray, lengths: IntArray, step: int) -> IntArray | None:
        """Most tokens of a row of each rank that holds each sample, shape [G, B]; None for no limit."""
        problem = self._problem
        if problem.capacity.unlimited:
            return None
        alone = problem.capacity.hold(problem.workers, lengths)
        if not alone.any(axis=0).all():
            longest = int(np.argmin(alone.any(axis=0)))
            raise capacity.row_too_short(step, int(ids[longest]), int(lengths[longest]))
        return problem.capacity.limits(problem.workers, lengths)

    def _work(self, ids: IntArray, step: int) -> Work:
        problem = self._problem
        speeds, lengths = problem.relative_speeds(), problem.lengths[ids]
        return Work(
            problem.weights(ids),
            lengths,
            # The square of a sum over the speed grows with the sum over the speed's root.
            np.sqrt(speeds) if self._squared else speeds,
            np.full(problem.workers, problem.cost.fixed),
            self._limits(ids, lengths, step),
        )

    def _floor(self, ids: IntArray) -> float:
        """No deal has a smaller maximum of what `Work` adds up."""
        problem = self._problem
        extra = problem.extra_of(ids)
        bound = packed_bound(problem.lengths[ids], problem.cost, problem.relative_speeds(), extra=extra)
        return float(np.sqrt(bound)) if self._squared else bound

    def _one_row(self, work: Work, floor: float, step: int) -> tuple[IntArray, Exactness]:
        """The rank of each sample, shape [B], and what is proven; the total is the same for all but squares."""
        dealt = exchanged(work, longest_first(work), floor, limited=False)
        owners = dealt if work.fits(dealt) else _within(work, floor)
        peak = np.inf if owners is None else work.peak(owners)
        proven = peak <= floor * (1 + ROUNDING)
        if not proven and len(work.lengths) <= SEARCHED:
            search = Search(work, peak, floor)
            owners, proven = owners if search.best is None else search.best, search.proven
        if owners is None:
            raise capacity.rows_too_short(step, len(work.lengths), int(work.lengths.sum()), work.ranks)
        return owners, "none" if not proven else "maximum" if self._squared else "both"

    def _all_tried(self, work: Work, extra: FloatArray | float, step: int) -> Rows | None:
        """The best of all ways to fill a fixed number of rows per rank; None where there are too many."""
        problem, lengths, limits = self._problem, work.lengths, work.limits
        number = problem.workers * (self._rows or 0)

        def price(held: BoolArray) -> FloatArray:
            of_samples = (lengths, lengths**2, np.broadcast_to(extra, lengths.shape))
            tokens, squares, besides = (np.tensordot(held, values, axes=(1, 0)) for values in of_samples)
            costs = problem.cost.cost_packed(tokens, squares, besides)
            if limits is not None:
                costs[tokens > np.where(held, limits[0][:, None], UNLIMITED).min(axis=1)] = TOO_LARGE
            return costs

        meets = Accumulation(problem.objective, problem.relative_speeds(), problem.cost.surcharge)
        found = best_grouping(len(lengths), number, price, meets, self._rows) if number else None
        if found is not None and found[0] >= TOO_LARGE:
            raise self._misfit(lengths, step)
        return None if found is None else found[1]

    def _by_slot(self, work: Work, step: int) -> Rows:
        """As many rows of every rank, slot by slot: so many as asked for, or the fewest that were found to do."""
        lengths, limits, ranks = work.lengths, work.limits, self._problem.workers
        tried: Iterable[int]
        if self._rows is None:
            assert limits is not None  # else one row of each rank holds all
            tried = range(_fewest_rows(lengths, limits[0], ranks), len(lengths) // ranks + 1)
        else:
            tried = (self._rows,)
        for slots in tried:
            found = rows_by_slot(work, slots)
            if found is not None:
                return found
        raise self._misfit(lengths, step)

    def _misfit(self, lengths: IntArray, step: int) -> NothingFits:
        return capacity.rows_too_short(
            step, len(lengths), int(lengths.sum()), self._problem.workers * (self._rows or 1)
        )

    def _several(self, limited: Work, floor: float, step: int) -> Rows:
        """Rows per rank: the batch dealt as if rows had no limit, then each share packed into rows.

        Where ranks then run different numbers of rows at a price each, the batch is dealt once more with that price.
        """
        work = replace(limited, limits=None, least=self._rows or 1)
        owners = exchanged(work, longest_first(work), floor)
        shares = self._packed(owners, limited, step)
        priced = self._priced(work, shares)
        if np.ptp(priced.fixed) > 0:
            again = exchanged(priced, owners, floor)
            packed = self._packed(again, limited, step)
            if self._priced(work, packed).peak(again) < priced.peak(owners):
                return packed
        return shares

    def _priced(self, work: Work, shares: Rows) -> Work:
        """With the price of each rank's rows after its first."""
        further = np.array([len(share) for share in shares]) - 1
        return replace(work, fixed=work.fixed + further * self._further)

    def _packed(self, owners: IntArray, work: Work, step: int) -> Rows:
        """Rows per rank as positions, each rank's share packed for itself."""
        shares = by_owner(np.arange(len(owners)), owners, self._problem.workers)
        return [[share[row] for row in self._pack(work, share, step)] for share in shares]

    def _pack(self, work: Work, share: IntArray, step: int) -> list[IntArray]:
        """One rank's share as rows of nearly equal cost: as many as asked for, or the fewest that were found to do.

        Args:
            work: the whole batch; all ranks are alike where they run several rows.
            share: positions of the rank's samples, dearest first, shape [n].
            step: for messages.
        """
        weights, lengths = work.weights[share], work.lengths[share]
        if work.limits is None:
            return [np.sort(row) for row in deal_longest_first(weights, self._rows or 1)]
        limits = work.limits[0, share]
        for rows in count(_fewest_rows(lengths, limits, 1)) if self._rows is None else (self._rows,):
            found = within_limits(Work(weights, lengths, np.ones(rows), np.zeros(rows), np.tile(limits, (rows, 1))))
            if found is not None:
                return by_owner(np.arange(len(lengths)), found, rows)
        raise capacity.rows_too_short(step, len(lengths), int(lengths.sum()), self._rows or 0)


def _fewest_rows(lengths: IntArray, limits: IntArray, ranks: int) -> int:
    """Rows of each rank at least: a sample uses up its tokens' part of the most that its row may hold."""
    return max(1, math.ceil(float((lengths / limits).sum()) / ranks - 1e-9))


def _within(work: Work, floor: float) -> IntArray | None:
    """A deal within the limits, improved by exchanges that keep to them; None where none was found."""
    owners = within_limits(work)
    return None if owners is None else exchanged(work, owners, floor)
