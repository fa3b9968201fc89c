"""How many samples or tokens a rank takes, and whether a plan fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dynbench.errors import BatchTooLarge, NothingFits, UsageError
from dynbench.plugins.policies import Layout
from dynbench.schedule.plan import IntArray, integers

UNLIMITED = 2**40
"""Samples or tokens; stands for "no limit" without leaving integers."""

BoolArray = NDArray[np.bool_]
Step = tuple[int, int]
"""Up to this padded length (tokens), at most this many samples, of packed rows tokens."""

_NO_LIMIT: tuple[Step, ...] = ((UNLIMITED, UNLIMITED),)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits that never rise with length; without arguments there are none.

    Args:
        rows: one row per rank, or a single one that holds for every rank; each row is steps (length, max_batch) of
            rising length. Between two lengths the longer one's limit holds; beyond the last nothing fits. Use the
            named constructors.
    """

    unit: ClassVar[str] = "samples"
    """What is counted."""
    rows: tuple[tuple[Step, ...], ...] = (_NO_LIMIT,)

    @classmethod
    def uniform(cls, max_batch: int) -> Self:
        """At most `max_batch` samples on every rank, at any length.

        Raises:
            UsageError: less than 1.
        """
        return cls((_row([(UNLIMITED, max_batch)], "schedule.capacity", cls.unit),))

    @classmethod
    def per_rank(cls, max_batches: Sequence[int]) -> Self:
        """At most `max_batches[g]` samples on rank g, at any length.

        Raises:
            UsageError: less than 1 somewhere.
        """
        return cls(
            tuple(_row([(UNLIMITED, n)], f"schedule.capacity[{g}]", cls.unit) for g, n in enumerate(max_batches))
        )

    @classmethod
    def table(cls, rows: Sequence[Sequence[tuple[int, int | None]]]) -> Self:
        """Measured limits: per rank, pairs (padded length, max_batch) in any order; one row holds for every rank.

        A max_batch of None is a length at which no limit was found. A limit above that of a shorter length is lowered
        to it: memory does not shrink with length.

        Raises:
            UsageError: an empty row, a length below 1 or a limit below 1.
        """
        limits = [[(length, UNLIMITED if most is None else most) for length, most in row] for row in rows]
        return cls(tuple(_row(row, f"schedule.capacity[{g}]", cls.unit) for g, row in enumerate(limits)))

    @property
    def unlimited(self) -> bool:
        """True when nothing is limited."""
        return all(row == _NO_LIMIT for row in self.rows)

    def check_ranks(self, workers: int) -> None:
        """Refuse limits given for another number of ranks.

        Raises:
            UsageError: neither one row nor one per rank.
        """
        if len(self.rows) not in (1, workers):
            raise UsageError(
                f"schedule.capacity: {len(self.rows)} capacities for {workers} ranks",
                "Give one number, or one per rank.",
            )

    def equal(self, workers: int) -> bool:
        """True when all ranks have the same limits."""
        self.check_ranks(workers)
        return len(set(self.rows)) == 1

    def least(self) -> Self:
        """What every rank can hold, as one row for all: at each length the least limit."""
        longest = min(row[-1][0] for row in self.rows)
        lengths = sorted({length for row in self.rows for length, _ in row if length <= longest})
        return type(self)(
            (tuple((length, min(self.limit(g, length) for g in range(len(self.rows)))) for length in lengths),)
        )

    def hold(self, workers: int, padded_lengths: IntArray) -> BoolArray:
        """Which rank can hold a single sample of each length, shape [G, n]."""
        return self.limits(workers, padded_lengths) > 0

    def row(self, rank: int) -> tuple[Step, ...]:
        """The steps (length, max_batch) that hold for one rank."""
        return self.rows[0] if len(self.rows) == 1 else self.rows[rank]

    def limit(self, rank: int, padded_length: int) -> int:
        """Largest micro-batch of `rank` at `padded_length` tokens, in `unit`; 0 where nothing fits."""
        return next((most for length, most in self.row(rank) if padded_length <= length), 0)

    def limits_of(self, rank: int, padded_lengths: IntArray) -> IntArray:
        """As `limit`, for many lengths; same shape."""
        lengths, most = integers(self.row(rank)).T
        limits: IntArray = np.append(most, 0)[np.searchsorted(lengths, padded_lengths)]
        return limits

    def limits(self, workers: int, padded_lengths: IntArray) -> IntArray:
        """As `limit`, for every rank and many lengths; shape [G, n], non-increasing in length."""
        self.check_ranks(workers)
        if len(self.rows) == 1:
            return np.broadcast_to(self.limits_of(0, padded_lengths), (workers, len(padded_lengths)))
        return np.stack([self.limits_of(rank, padded_lengths) for rank in range(workers)])


class PackedCapacity(Capacity):
    """The same in tokens: the most that a packed row may hold, by the length of its longest sample.

    What attention needs grows with the longest sample, everything else with the tokens of the row.
    """

    unit: ClassVar[str] = "tokens"

    def hold(self, workers: int, padded_lengths: IntArray) -> BoolArray:
        """As the base: a row of one sample holds its tokens."""
        return self.limits(workers, padded_lengths) >= padded_lengths


def _row(steps: Sequence[Step], where: str, unit: str) -> tuple[Step, ...]:
    """Steps sorted by length, limits made non-increasing."""
    if not steps:
        raise UsageError(f"{where}: no length was found to fit", "Probe again with shorter lengths or more memory.")
    row: list[Step] = []
    lowest = UNLIMITED
    for length, max_batch in sorted((int(length), int(most)) for length, most in steps):
        if length < 1 or max_batch < 1:
            raise UsageError(
                f"{where}: {max_batch} {unit} at length {length}", "Lengths and capacities are at least 1."
            )
        lowest = min(lowest, max_batch)
        row.append((length, lowest))
    return tuple(row)


def capacity_of(tables: Sequence[Sequence[tuple[int, int | None]]], layout: Layout) -> Capacity:
    """What was measured on micro-batches of samples of a length: per rank, pairs (length, most samples).

    A packed row may hold as many tokens, whatever the lengths of the others beside its longest sample: what was
    measured is the row of these that needs most memory.
    """
    if layout == "padded":
        return Capacity.table(tables)
    return PackedCapacity.table(
        [[(length, None if most is None else most * length) for length, most in row] for row in tables]
    )


def sample_too_long(step: int, sample: int, length: int, where: str = "any rank") -> NothingFits:
    """One sample is beyond the longest length that fits.

    Args:
        step: optimizer step.
        sample: its id.
        length: its padded length, tokens.
        where: who cannot hold it.
    """
    return NothingFits(
        f"step {step}: sample {sample} of {length} padded tokens is longer than the capacity of {where} allows (0 fit)",
        "Lower workload.max_length, or probe capacities at this length.",
    )


def batch_too_large(step: int, global_batch: int, largest: int, may_split: bool = True) -> BatchTooLarge:
    """The ranks' capacities together are less than the global batch, in this step; of other steps nothing is said.

    Args:
        step: optimizer step.
        global_batch: samples asked for (B).
        largest: any this many of the step's samples fit.
        may_split: whether micro-batches would help.
    """
    split = ", or set schedule.micro_batches=auto" if may_split else ""
    return BatchTooLarge(
        f"step {step}: {global_batch} samples do not fit into the ranks' capacities at their lengths",
        f"Of this step's samples {largest} fit, of other steps' maybe fewer: lower the global batch{split}.",
    )


def row_too_short(step: int, sample: int, length: int, where: str = "any rank") -> NothingFits:
    """As `sample_too_long`, of packed rows."""
    return NothingFits(
        f"step {step}: sample {sample} of {length} tokens is longer than a packed row of {where} may be",
        "Lower workload.max_length, or raise schedule.capacity (tokens per row).",
    )


def rows_too_short(step: int, samples: int, tokens: int, rows: int) -> BatchTooLarge:
    """No way was found to pack samples into so many rows; which of many are tried is a heuristic."""
    return BatchTooLarge(
        f"step {step}: {samples} samples of {tokens} tokens do not fit into {rows} packed rows within the capacities",
        "Lower the global batch, or set schedule.micro_batches=auto.",
    )
