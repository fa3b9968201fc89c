"""A plan of a step, the order of samples that steps take, and the arrays that both are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynbench.errors import UsageError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

Exactness = Literal["both", "maximum", "none"]
"""Proven optimal in both objectives, in the maximum only, or not proven."""

Share = tuple[IntArray, ...]
"""One rank's work in one step: its micro-batches, each the ids of its samples (positions in the length array)."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one optimizer step.

    Attributes:
        step: optimizer step, counted from 0.
        shares: per rank, its micro-batches.
        exact: what is proven about it, within the policy's own choice of samples.
        packed: micro-batches are rows of real tokens, packed without padding.
    """

    step: int
    shares: tuple[Share, ...]
    exact: Exactness = "none"
    packed: bool = False

    @property
    def local_batches(self) -> tuple[int, ...]:
        """Samples per rank."""
        return tuple(sum(len(ids) for ids in share) for share in self.shares)

    def sample_ids(self) -> IntArray:
        """All samples of the step, rank by rank."""
        return np.concatenate([ids for share in self.shares for ids in share])


def integers(values: ArrayLike) -> IntArray:
    """A copy of `values` as 64-bit integers, also when empty."""
    return np.array(values, dtype=np.int64)


def floats(values: ArrayLike) -> FloatArray:
    """`values` as 64-bit floats, whose products do not overflow."""
    return np.asarray(values, dtype=np.float64)


def stable_argsort(values: ArrayLike, axis: int = -1) -> IntArray:
    """Positions of `values` from the least to the greatest along `axis`, equal ones in the order they stand in."""
    return np.argsort(values, axis=axis, kind="stable")


def in_turn(values: IntArray, ranks: int) -> IntArray:
    """Values dealt round-robin to G ranks, shape [G, n / G]; n is a multiple of G."""
    return values.reshape(len(values) // ranks, ranks).T


def cut(ids: IntArray, counts: Sequence[int]) -> list[IntArray]:
    """Consecutive groups of these sizes."""
    return [ids[start:end] for start, end in pairwise(accumulate(counts, initial=0))]


def owners_of(dealt: Sequence[Sequence[int]]) -> IntArray:
    """Which rank has each of the positions 0, 1, …, from the positions of each rank."""
    return np.repeat(np.arange(len(dealt)), [len(own) for own in dealt])[np.argsort(np.concatenate(dealt))]


def by_owner(values: IntArray, owners: IntArray, ranks: int) -> list[IntArray]:
    """The values of each rank, in their order; `owners` tells whose each is."""
    ends = np.cumsum(np.bincount(owners, minlength=ranks))[:-1]
    return np.split(values[stable_argsort(owners)], ends)


def single(groups: Sequence[IntArray]) -> tuple[Share, ...]:
    """Shares of one micro-batch per rank."""
    return tuple((ids,) for ids in groups)


@dataclass(frozen=True, slots=True)
class DataOrder:
    """Seeded permutations of the samples, one per epoch, cut into global batches; the incomplete last one is dropped.

    Args:
        n_samples: samples in the data set (N).
        global_batch: samples per step (B), at most N.
        seed: seed of the permutations.
        order: `shuffle`, or `file` for the order in which they stand.

    Raises:
        UsageError: fewer samples than one global batch.
    """

    n_samples: int
    global_batch: int
    seed: int = 0
    order: Literal["shuffle", "file"] = "shuffle"

    def __post_init__(self) -> None:
        if self.n_samples < self.global_batch:
            raise UsageError(
                f"train.global_batch: {self.global_batch} is more than the {self.n_samples} samples of the data",
                f"Use at most {self.n_samples}.",
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches in one epoch."""
        return self.n_samples // self.global_batch

    def permutation(self, epoch: int) -> IntArray:
        """Sample ids of one epoch in order of arrival, shape [N]."""
        if self.order == "file":
            return np.arange(self.n_samples)
        return np.random.default_rng([self.seed, epoch]).permutation(self.n_samples)

    def epoch_batches(self, epoch: int) -> IntArray:
        """Global batches of one epoch, shape [steps_per_epoch, B]; rank g of `static` takes every G-th from g on."""
        used = self.steps_per_epoch * self.global_batch
        return self.permutation(epoch)[:used].reshape(self.steps_per_epoch, self.global_batch)
