"""The loss of tokens: graded, weighed, summed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dynbench.errors import UsageError
from dynbench.kernels.packed_attention import NO_TARGET
from dynbench.workloads.base import Workload
from dynbench.workloads.batches import make_micro_batch
from dynbench.workloads.data import IntArray, TokenisedData

TOLERANCE = 0.01
"""Of the samples' losses; a mean in place of a sum is off by more than half of them."""
HINT = (
    "Return the sum over the batch's samples, each times its weight: reduction='sum' in place of a mean. "
    "dynbench/workloads/base.py documents it."
)
PIECE = 2**23
"""Logits that are worked on at a time."""
KEEPS_NO_OUTPUT = ("Addmm", "Linear", "Mm", "ToCopy", "UnsafeView", "View")
"""How the operations are named whose backward pass does not look at what they gave, so that it may be overwritten."""


def at_least_fp32(logits: Tensor) -> Tensor:
    """Half precision is raised to fp32 for the softmax, double stays double."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def grade(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy summed over the samples, and the number of right answers, both scalars on the device.

    Args:
        logits: shape [n, classes].
        labels: shape [n].
    """
    logits = at_least_fp32(logits)
    right = (logits.detach().argmax(dim=-1) == labels).sum()
    return F.cross_entropy(logits, labels, reduction="sum"), right


logger = logging.getLogger(__name__)


def check_sums(workload: Workload, model: nn.Module, name: str, device: torch.device) -> None:
    """Compare the loss of samples together with those of each alone, dropout off; `eval_sums` as well.

    A loss that draws random numbers while evaluating cannot be judged so, and one that padding changes is another
    fault: both are warned about.

    Args:
        workload: whose losses.
        model: on the CPU, and there again afterwards, in evaluation mode.
        name: for messages.
        device: where the model is to run.

    Raises:
        UsageError: they do not add up.
    """
    model.to(device).eval()
    _check("loss", workload, workload.train, lambda batch: workload.loss(model, batch).item(), name, device)
    if workload.eval is not None:
        with torch.no_grad():
            sums = "eval_sums' loss_sum"
            _check(
                sums, workload, workload.eval, lambda batch: workload.eval_sums(model, batch)["loss_sum"], name, device
            )
    if device.type != "cpu":
        model.to("cpu")
        torch.cuda.empty_cache()


def _check(
    what: str,
    workload: Workload,
    data: TokenisedData,
    value: Callable[[dict[str, Any]], float],
    name: str,
    device: torch.device,
) -> None:
    ids = _some(data)

    def of(some: IntArray, multiple: int = 1) -> float:
        return value(make_micro_batch(workload, data, some, multiple, device).inputs)

    whole, again = of(ids), of(ids)
    longest = int(data.lengths[ids].max())
    each = [of(ids[i : i + 1], longest) for i in range(len(ids))]
    padded, alone = sum(each), sum(of(ids[i : i + 1]) for i in range(len(ids)))
    scale = TOLERANCE * sum(map(abs, each))
    if not math.isfinite(whole) or not math.isfinite(scale):
        return  # the rows and checks of the run report it
    if abs(whole - again) > scale:
        logger.warning(
            "%s: two passes give %s of %.6g and %.6g for the same samples, so that nobody can tell whether it is a sum "
            "over samples; let it draw no random numbers where the model is evaluated",
            *(name, what, whole, again),
        )
    elif abs(whole - padded) > scale:
        raise UsageError(
            f"{name}: {what} is {whole:.6g} for {len(ids)} samples together, but {padded:.6g} for each alone, added up",
            HINT,
        )
    elif abs(padded - alone) > scale:
        logger.warning(
            "%s: padding changes what a sample gives, so that losses depend on who pads how much: %s is %.6g for %d "
            "samples padded to %d tokens, but %.6g without padding",
            *(name, what, padded, len(ids), longest, alone),
        )


def _some(data: TokenisedData) -> IntArray:
    """Up to four samples that count something, of several of the shorter lengths; shape [n]."""
    counting = np.arange(len(data)) if data.weights is None else np.flatnonzero(data.weights)
    ordered: IntArray = counting[np.argsort(data.lengths[counting], kind="stable")]
    return ordered[sorted({0, min(1, len(ordered) - 1), len(ordered) // 8, len(ordered) // 4})]


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
