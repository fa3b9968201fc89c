"""How many plans `prefix` chooses among at the size of a report, and where trying all of them ends."""

from __future__ import annotations

from math import comb, isfinite

import numpy as np

from dynbench.schedule.prefix_enumerate import REFERENCE_LIMIT, number_of_counts
from dynbench.schedule.prefix_variance import ENUMERATION_LIMIT

COUNTED = 10**8
"""Largest ranks * samples * buffer for which plans within the buffer are counted."""

Texts = dict[str, str | None]


def plan_counts(workers: int | None, global_batch: int | None, buffer: int | None) -> Texts:
    """Texts of the numbers of plans for G ranks, B samples and K samples per buffer; None where a size is unknown."""
    texts: Texts = {
        "plans.limit": f"{REFERENCE_LIMIT:,}",
        "plans.inline": f"{ENUMERATION_LIMIT:,}",
        "plans.buffer": None if buffer is None else f"{buffer:,}",
        "plans.count": None,
        "plans.within_buffer": None,
        "plans.most_ranks": None,
        "plans.fits": None,
        "plans.ranks": None if workers is None else f"{workers:,}",
        "plans.batch": None if global_batch is None else f"{global_batch:,}",
    }
    if workers is None or global_batch is None or global_batch < workers:
        return texts
    texts["plans.count"] = large(comb(global_batch - 1, workers - 1))
    if buffer is not None:
        texts["plans.within_buffer"] = _within(workers, global_batch, buffer)
    texts["plans.fits"] = "yes" if fits_enumeration(workers, global_batch, buffer) else None
    most = 1
    while most < global_batch and comb(global_batch - 1, most) <= REFERENCE_LIMIT:
        most += 1
    # The count falls again beyond half the batch; a batch small enough has no limit at all.
    texts["plans.most_ranks"] = f"{most:,}"
    return texts


def fits_enumeration(workers: int, global_batch: int, buffer: int | None) -> bool:
    """Whether the solver `enumerate` tries this size."""
    cut = buffer is not None and buffer <= global_batch - workers
    if not cut or workers * global_batch * (buffer or 0) > COUNTED:
        return comb(global_batch - 1, workers - 1) <= REFERENCE_LIMIT
    return _counted(workers, global_batch, buffer or 0) <= REFERENCE_LIMIT


def large(count: int) -> str:
    """`1,234,567`, or `1.2·10^34` beyond a million million."""
    if count < 10**12:
        return f"{count:,}"
    digits = str(count)
    return f"*{digits[0]}.{digits[1]}·10^{len(digits) - 1}*"


def _within(workers: int, global_batch: int, buffer: int) -> str | None:
    if buffer > global_batch - workers:
        return large(comb(global_batch - 1, workers - 1))
    if workers * global_batch * buffer > COUNTED:
        return None
    counted = _counted(workers, global_batch, buffer)
    return large(int(counted)) if isfinite(counted) else None


def _counted(workers: int, global_batch: int, buffer: int) -> float:
    lower = np.ones(workers, dtype=np.int64)
    return number_of_counts(lower, np.full(workers, buffer, dtype=np.int64), global_batch)
