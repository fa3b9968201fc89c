"""How many plans `prefix` chooses among at the size of a report, and where trying all of them ends."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, isfinite

import numpy as np

from dynbench.schedule.prefix_enumerate import REFERENCE_LIMIT, number_of_counts
from dynbench.schedule.prefix_variance import ENUMERATION_LIMIT

COUNTED = 10**8
"""Largest ranks * samples * buffer for which plans within the buffer are counted."""


@dataclass(frozen=True)
class Plans:
    """Numbers of plans; None where a size is unknown.

    Attributes:
        ranks, batch, buffer: G ranks, B samples and K samples per buffer.
        count: all plans.
        within_buffer: those that keep to the buffers; None also where there are too many to count.
        most_ranks: how many ranks the solver `enumerate` tries with that batch and no buffers.
        fits: whether it tries this size.
        limit, inline: how many plans it tries at most, and the solver of the variance.
    """

    ranks: int | None
    batch: int | None
    buffer: int | None
    count: int | None = None
    within_buffer: int | None = None
    most_ranks: int | None = None
    fits: bool = False
    limit: int = REFERENCE_LIMIT
    inline: int = ENUMERATION_LIMIT


def plan_counts(workers: int | None, global_batch: int | None, buffer: int | None) -> Plans:
    """Of G ranks, B samples and K samples per buffer."""
    if workers is None or global_batch is None or global_batch < workers:
        return Plans(workers, global_batch, buffer)
    # The count falls again beyond half the batch; a batch small enough has no limit at all.
    most = 1
    while most < global_batch and comb(global_batch - 1, most) <= REFERENCE_LIMIT:
        most += 1
    count = comb(global_batch - 1, workers - 1)
    within = None if buffer is None else _within(workers, global_batch, buffer)
    fits = fits_enumeration(workers, global_batch, buffer)
    return Plans(workers, global_batch, buffer, count, within, most, fits)


def fits_enumeration(workers: int, global_batch: int, buffer: int | None) -> bool:
    """Whether the solver `enumerate` tries this size."""
    cut = buffer is not None and buffer <= global_batch - workers
    if not cut or workers * global_batch * (buffer or 0) > COUNTED:
        return comb(global_batch - 1, workers - 1) <= REFERENCE_LIMIT
    return _counted(workers, global_batch, buffer or 0) <= REFERENCE_LIMIT


def _within(workers: int, global_batch: int, buffer: int) -> int | None:
    if buffer > global_batch - workers:
        return comb(global_batch - 1, workers - 1)
    if workers * global_batch * buffer > COUNTED:
        return None
    counted = _counted(workers, global_batch, buffer)
    return int(counted) if isfinite(counted) else None


def _counted(workers: int, global_batch: int, buffer: int) -> float:
    lower = np.ones(workers, dtype=np.int64)
    return number_of_counts(lower, np.full(workers, buffer, dtype=np.int64), global_batch)
