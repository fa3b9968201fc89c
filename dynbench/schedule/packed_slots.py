"""Packed rows for ranks that meet in every row: the least sum, over the slots of rows, of the slowest rank's.

Without padding the work is what it is, so a plan is as good as can be where all rows of a slot last alike, however
long. Where the longest sample lasts longer than that, a slot is filled to its length, and the rest is dealt to others.
"""

from __future__ import annotations

import numpy as np

from dynbench.schedule.packed_deal import Work, longest_first, within_limits
from dynbench.schedule.packed_exchange import exchanged
from dynbench.schedule.plan import IntArray

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
        for own, row in zip(rows, taken, strict=True):
            own.append(left[row])
        left, slots = np.delete(left, np.concatenate(taken)), slots - 1
    dealt = _balanced(work, left, slots)
    return None if dealt is None else [own + more for own, more in zip(rows, dealt, strict=True)]


def _filled(work: Work, left: IntArray, lasts: float, most: int) -> list[list[int]]:
    """Rows that end by then, one per rank, of at most so many samples together, as places in `left`.

    The fastest rank runs the longest sample alone; the rank with most room takes the longest that it has room for.
    """
    weights, lengths = work.weights[left], work.lengths[left]
    room = lasts * work.speeds - work.fixed
    fastest = int(work.speeds.argmax())
    rows: list[list[int]] = [[] for _ in room]
    rows[fastest], room[fastest], place, idle = [0], -np.inf, 1, work.ranks - 1
    while (rank := int(room.argmax())) >= 0 and room[rank] > 0 and place < len(left) - idle:
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
    numbers, spent = np.arange(slots * work.ranks).reshape(slots, -1), every.spent(owners)
    dearest_first = np.argsort(-spent[numbers], axis=0, kind="stable")
    grid = np.take_along_axis(numbers, dearest_first, axis=0)
    if np.ptp(work.speeds) == 0:
        grid = np.argsort(-spent, kind="stable").reshape(slots, -1)
    return [[left[owners == number] for number in grid[:, rank].tolist()] for rank in range(work.ranks)]
