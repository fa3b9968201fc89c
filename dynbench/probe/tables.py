"""From probed lengths to every length: the capacity tables that planners use."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.probe.memory_model import between, peak_mb
from dynbench.probe.search import monotone
from dynbench.runs.probe_record import CapacityRow, MemoryFit

STEP_TOKENS = 8
"""Lengths between the probed ones are answered at multiples of this."""

Table = list[tuple[int, int | None]]
"""(length, largest micro-batch) by ascending length; None where no limit was found."""


def capacity_tables(rows: Sequence[CapacityRow], model: MemoryFit | None, world_size: int) -> list[Table]:
    """Per rank, (length, largest micro-batch) by ascending length, where at least one sample fits.

    Between probed lengths the memory model answers, against the peak it predicts for what passed at the probed ones:
    never more than was usable at the next shorter probed length, never less than at the next longer. Up to the longest
    probed length at which nothing failed there is no limit, and what the model says beyond it is not cut to the sizes
    that were tried there.
    """
    return [_table([row for row in rows if row.rank == rank], model) for rank in range(world_size)]


def _table(rows: Sequence[CapacityRow], model: MemoryFit | None) -> Table:
    limited = monotone({row.length: row.max_batch for row in rows if row.tested_fail is not None})
    capacity = {row.length: limited.get(row.length) for row in rows}
    bound = [row for row in rows if limited.get(row.length)]
    limit_mb = min((peak_mb(model, row.max_batch, row.length) for row in bound), default=0.0) if model else 0.0
    lengths = {length for length in range(STEP_TOKENS, max(capacity) + 1, STEP_TOKENS) if length > min(capacity)}
    table = [(length, between(model, length, limit_mb, capacity)) for length in sorted(lengths | set(capacity))]
    return [(length, n) for length, n in table if n != 0]
