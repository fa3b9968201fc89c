"""Predicted cost of one micro-batch of `n` samples padded to `L` tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dynbench.errors import unknown_name
from dynbench.lengths import padded_lengths
from dynbench.plugins.policies import Layout
from dynbench.schedule.plan import FloatArray, IntArray, floats

CostType = Literal["tokens", "tokens_sq", "attention", "measured"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Cost of a micro-batch; non-decreasing in both its sample count and its length.

    Args:
        cost_type: `tokens` n*L, `tokens_sq` (n*L)**2, `attention` n*L + a*n*L**2,
            `measured` alpha + beta*n*L + gamma*n*L**2.
        attention_a: a of `attention`, per token.
        alpha, beta, gamma: coefficients of `measured`, in ms, ms per padded token, ms per padded token and token.
        further: with `measured`, what a rank pays in place of alpha for every micro-batch after its first, ms; None
            for alpha.
        pad_to_multiple_of: lengths are rounded up to a multiple of this before they are priced, tokens.
        positions: longest padded sample that the model takes, tokens; None for any.
        fitted_on: layout of the micro-batches that `measured` was fitted on; None where it was given. Of another layout
            its costs are an estimate from the tokens.

    Raises:
        UsageError: unknown cost type, with the nearest spelling.
    """

    cost_type: CostType = "tokens"
    attention_a: float = 0.001
    alpha: float = 0.0
    beta: float = 1.0
    gamma: float = 0.0
    further: float | None = None
    pad_to_multiple_of: int = 1
    positions: int | None = None
    fitted_on: Layout | None = None

    def __post_init__(self) -> None:
        known = get_args(CostType)
        if self.cost_type not in known:
            raise unknown_name(f"schedule.cost_type: {self.cost_type!r} is not a cost type", str(self.cost_type), known)

    @property
    def fixed(self) -> float:
        """What a micro-batch costs besides its samples: alpha of `measured`, else nothing."""
        return self.alpha if self.cost_type == "measured" else 0.0

    @property
    def surcharge(self) -> float:
        """What every micro-batch of a rank after its first costs beyond `cost`; at least -alpha."""
        return 0.0 if self.further is None or self.cost_type != "measured" else self.further - self.alpha

    def of_rank(self, summed: ArrayLike, micro_batches: ArrayLike) -> FloatArray:
        """Cost of a rank's share from the summed cost of its micro-batches, at least one; both broadcast."""
        return floats(summed) + (np.asarray(micro_batches) - 1) * self.surcharge

    def padded(self, lengths: ArrayLike) -> IntArray:
        """Lengths as they are padded, tokens; same shape."""
        return padded_lengths(lengths, self.pad_to_multiple_of, self.positions)

    def cost(self, n: ArrayLike, length: ArrayLike) -> FloatArray:
        """Cost of micro-batches of `n` samples whose longest has `length` tokens; both broadcast. Zero where n is 0."""
        return self.cost_padded(n, self.padded(length))

    def cost_padded(self, n: ArrayLike, padded_length: ArrayLike, extra: ArrayLike = 0.0) -> FloatArray:
        """As `cost`, for lengths already rounded up and samples that cost `extra` tokens together besides.

        What is extra is neither padded nor attended to: see `Problem.second`.
        """
        count, length = floats(n), floats(padded_length)
        tokens = count * length
        return np.where(count > 0, self.of_work(self._work(tokens, tokens * length, floats(extra))), 0.0)

    def cost_packed(self, tokens: ArrayLike, squares: ArrayLike, extra: ArrayLike = 0.0) -> FloatArray:
        """Cost of samples packed without padding, each attending to itself only.

        Args:
            tokens: sum of the lengths.
            squares: sum of the squared lengths.
            extra: what they cost besides, as `cost_padded`; all broadcast.
        """
        real = floats(tokens)
        return np.where(real > 0, self.of_work(self._work(real, floats(squares), floats(extra))), 0.0)

    def per_sample(self, padded_length: ArrayLike, extra: ArrayLike = 0.0) -> FloatArray:
        """Work that one more sample of `extra` tokens besides adds at this padded length; same shape."""
        length = floats(padded_length)
        return self._work(length, length * length, floats(extra))

    def of_work(self, work: FloatArray) -> FloatArray:
        """Cost of a micro-batch from the summed work of its samples; same shape."""
        return work * work if self.cost_type == "tokens_sq" else work + self.fixed

    def work_within(self, costs: FloatArray) -> FloatArray:
        """The work of which `of_work` makes these costs; same shape."""
        return np.sqrt(costs) if self.cost_type == "tokens_sq" else costs - self.fixed

    def _work(self, tokens: FloatArray, squares: FloatArray, extra: FloatArray) -> FloatArray:
        total: FloatArray = tokens + extra
        if self.cost_type == "measured":
            return self.beta * total + self.gamma * squares
        return total + self.attention_a * squares if self.cost_type == "attention" else total
