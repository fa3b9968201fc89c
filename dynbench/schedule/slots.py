"""A sorted batch cut into slots, for ranks that meet in every micro-batch: the least sum of the slots' durations.

Here every slot takes samples that follow each other in sorted length, the first slot the longest. Given how long it may
last, its ranks take as many samples as they can, one after the other. So the samples left after it follow from those
before it and its duration, and a programme over the samples left chooses the durations, of a few that are tried.
"""

from __future__ import annotations

import numpy as np

from dynbench.schedule.accumulation import Accumulation, Dealt, SortedStep
from dynbench.schedule.plan import FloatArray, IntArray

DURATIONS = 128
"""Durations tried, at most; `LEAST_DURATIONS` at least, where they times samples would be more than `CELLS`."""
LEAST_DURATIONS = 32
CELLS = 2**14
PLACES = 32
"""Places of the sorted batch whose multiples are durations that may be tried."""
STRETCH = 1.3
"""Longest duration that is tried over that of slots that last alike."""


def cut_by_slots(samples: SortedStep, meets: Accumulation, slots: int, even: float) -> tuple[list[int], Dealt]:
    """Sizes of slots times ranks micro-batches, the longest samples' first, and those of each rank, slot by slot.

    Args:
        samples: at least one per micro-batch, which the limits allow.
        meets: how long the slots last.
        slots: micro-batches of every rank (n).
        even: cost within which so many micro-batches hold all samples.
    """
    size, ranks = len(samples.weights), meets.ranks
    durations = _durations(samples, size // (slots * ranks), even) / meets.speeds.min()
    falling = np.argsort(-meets.speeds, kind="stable").tolist()
    orders = [falling] if meets.alike else [falling, falling[::-1]]
    holds = {speed: samples.within(durations * speed) for speed in set(meets.speeds.tolist())}
    reached = np.concatenate([_reached(holds, meets.speeds[order].tolist()) for order in orders])
    chosen = _choose(reached, np.tile(durations, len(orders)), slots, ranks)
    sizes: list[int] = []
    dealt: Dealt = [[] for _ in range(ranks)]
    start = 0
    for after, choice in zip(range(slots - 1, -1, -1), reversed(chosen), strict=True):
        order, duration = divmod(int(choice[start]), len(durations))
        for left, rank in zip(range(ranks - 1, -1, -1), orders[order], strict=True):
            most = int(holds[float(meets.speeds[rank])][duration, start])
            dealt[rank].append(len(sizes))
            sizes.append(min(most, size - start - left - after * ranks))
            start += sizes[-1]
    return sizes, dealt


def _durations(samples: SortedStep, mean: int, even: float) -> FloatArray:
    """Costs that a slot's dearest micro-batch may have, rising; the last is enough for any slot. Shape [K]."""
    size = len(samples.weights)
    places = np.linspace(0, size - 1, min(size, PLACES)).astype(np.int64)
    counts = np.arange(1, min(size, 8 * mean) + 1)
    besides = 0.0 if samples.before is None else samples.before[-1] / size
    work = np.multiply.outer(counts, samples.weights[places] + besides).ravel()
    costs = work * work if samples.cost.cost_type == "tokens_sq" else work
    if samples.cost.cost_type == "measured":
        costs = work + samples.cost.alpha
    costs = np.unique(costs[costs <= STRETCH * even])
    most = min(DURATIONS, max(CELLS // size, LEAST_DURATIONS))
    tried = costs[np.linspace(0, len(costs) - 1, min(most, len(costs))).astype(np.int64)]
    return np.append(tried, STRETCH * even)


def _reached(holds: dict[float, IntArray], speeds: list[float]) -> IntArray:
    """The place behind a slot that begins at each place, by its duration, shape [K, B + 2].

    B is the end of the samples, and B + 1 stands for where a rank can take no sample.

    Args:
        holds: by speed, the most that a rank takes from each place on, shape [K, B].
        speeds: of the ranks, in the order in which they take their micro-batches.
    """
    reached: IntArray | None = None
    for speed in dict.fromkeys(speeds):
        within = holds[speed]
        size = within.shape[1]
        step = np.minimum(np.arange(size) + within, size)
        step[within == 0] = size + 1
        step = np.append(step, np.tile([size, size + 1], (len(step), 1)), axis=1)
        times = speeds.count(speed)
        while times:
            if times & 1:
                reached = step if reached is None else np.take_along_axis(step, reached, axis=1)
            times >>= 1
            if times:
                step = np.take_along_axis(step, step, axis=1)
    assert reached is not None
    return reached


def _choose(reached: IntArray, durations: FloatArray, slots: int, ranks: int) -> list[IntArray]:
    """For each slot, the last first, the duration's number by the place where it begins, shape [B + 2].

    As many samples as later micro-batches need are left for these.
    """
    width = reached.shape[1]
    lasts = np.full(width, np.inf)
    lasts[width - 2] = 0.0
    chosen, every = [], np.arange(width)
    for after in range(slots):
        ends = np.where(reached == width - 1, reached, np.minimum(reached, width - 2 - after * ranks))
        totals = lasts[ends] + durations[:, None]
        choice = totals.argmin(axis=0)
        lasts = totals[choice, every]
        chosen.append(choice)
    return chosen
