"""FlashAttention-2 whose backward pass is written as formulas over whole matrices, and compiled by torch.compile.

Nothing quadratic is saved between the passes, but within the backward pass there are scores of all queries by all keys,
which tiles do without: `FlashAttentionTorch` is what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynbench.kernels.flash_torch import MASKED, FlashAttentionTorch, recomputed, wide


class FlashAttentionCompiled(FlashAttentionTorch):
    """As `FlashAttentionTorch`, forward too, but for its backward pass."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """By recomputation; `gradients` has that of the result only."""
        return recomputed(ctx, gradients[0], _compiled())


@cache
def _compiled() -> Callable[..., tuple[Tensor, ...]]:
    """Made when it is first needed: torch's compiler is slow to import."""
    return torch.compile(backward_whole)


def backward_whole(
    query: Tensor, key: Tensor, value: Tensor, result: Tensor, gradient: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values as `backward_tiles` gives them, from the same."""
    query, key, value, result, gradient = (wide(each) for each in (query, key, value, result, gradient))
    scale = 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-1, -2) * scale
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, MASKED)
    weights = (scores - lse.unsqueeze(-1)).exp()
    delta = (gradient * result).sum(-1, keepdim=True)
    of_scores = weights * (gradient @ value.transpose(-1, -2) - delta) * scale
    return of_scores @ key, of_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ gradient
