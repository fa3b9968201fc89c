"""What a policy produces: for each step, who computes which samples, in which micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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


def single(groups: Sequence[IntArray]) -> tuple[Share, ...]:
    """Shares of one micro-batch per rank."""
    return tuple((ids,) for ids in groups)
