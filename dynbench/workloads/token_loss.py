"""Cross entropy over target tokens beside the logits alone, which of a large vocabulary are most of the memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynbench.kernels.packed_rows import NO_TARGET

PIECE = 2**23
"""Logits that are worked on at a time."""
KEEPS_NO_OUTPUT = ("Addmm", "Linear", "Mm", "ToCopy", "UnsafeView", "View")
"""How the operations are named whose backward pass does not look at what they gave, so that it may be overwritten."""


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """What `cross_entropy(…, reduction="sum", ignore_index=NO_TARGET)` gives, with less memory and on a CPU sooner.

    Nothing is kept of the forward pass but a number for each row, and the gradient is written over the logits where
    whatever made them does not need them any more; torch refuses a second backward pass then.

    Args:
        logits: fp32 or double, [N, vocabulary]; not to be read after the backward pass.
        labels: int64 [N], each a token or `NO_TARGET`.
    """
    apply: Any = _SummedCrossEntropy.apply  # torch leaves it untyped
    total: Tensor = apply(logits, labels, _may_be_overwritten(logits))
    return total


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, overwrites: bool) -> Tensor:
        normalisers = torch.cat([torch.logsumexp(logits[rows], -1) for rows in _pieces(logits)])
        of_labels = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        ctx.save_for_backward(logits, labels, normalisers)
        ctx.overwrites = overwrites
        return (normalisers - of_labels)[labels != NO_TARGET].sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, labels, normalisers = ctx.saved_tensors
        gradient = logits.detach() if ctx.overwrites else torch.empty_like(logits)
        factors = grad * (labels != NO_TARGET)
        for rows in _pieces(logits):
            part = torch.sub(logits[rows], normalisers[rows, None], out=gradient[rows]).exp_()
            part.scatter_add_(1, labels[rows].clamp(min=0)[:, None], part.new_full((len(part), 1), -1))
            part.mul_(factors[rows, None])
        return gradient, None, None


def _may_be_overwritten(logits: Tensor) -> bool:
    """Whether no backward pass before this one needs what it gave; a view is looked through."""
    made_by: Any = logits.grad_fn
    while made_by is not None:
        name = made_by.name()
        if not name.startswith(KEEPS_NO_OUTPUT):
            return False
        if not name.startswith("View"):
            return True
        made_by = made_by.next_functions[0][0]
    return False


def _pieces(logits: Tensor) -> Iterator[slice]:
    step = max(1, PIECE // logits.shape[1])
    return (slice(begin, begin + step) for begin in range(0, len(logits), step))
