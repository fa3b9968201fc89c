"""Proof on real samples that a workload's losses add up, on which the weights of ranks and micro-batches rest."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from dynbench.errors import UsageError
from dynbench.workloads.base import Workload
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.micro_batch import MicroBatch, make_micro_batch

logger = logging.getLogger(__name__)

TOLERANCE = 0.01
"""Of the samples' losses; a mean in place of a sum is off by more than half of them."""
HINT = (
    "Return the sum over the batch's samples, each times its weight: reduction='sum' in place of a mean. "
    "dynbench/workloads/base.py documents it."
)


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
    _check("loss", workload, workload.train, lambda batch: workload.loss(model, batch.inputs).item(), name, device)
    if workload.eval is not None:
        with torch.no_grad():
            _check(
                "eval_sums' loss_sum",
                workload,
                workload.eval,
                lambda batch: workload.eval_sums(model, batch.inputs)["loss_sum"],
                name,
                device,
            )
    if device.type != "cpu":
        model.to("cpu")
        torch.cuda.empty_cache()


def _check(
    what: str,
    workload: Workload,
    data: TokenisedData,
    value: Callable[[MicroBatch], float],
    name: str,
    device: torch.device,
) -> None:
    ids = _some(data)

    def of(some: IntArray, multiple: int = 1) -> float:
        return value(make_micro_batch(workload, data, some, multiple, device))

    together, again = of(ids), of(ids)
    longest = int(data.lengths[ids].max())
    apart, alone = ([of(ids[i : i + 1], multiple) for i in range(len(ids))] for multiple in (longest, 1))
    scale = TOLERANCE * sum(map(abs, apart))
    if not math.isfinite(together) or not math.isfinite(scale):
        return  # the rows and checks of the run tell of it
    if abs(together - again) > scale:
        logger.warning(
            "%s: two passes give %s of %.6g and %.6g for the same samples, so that nobody can tell whether it is a sum "
            "over samples; let it draw no random numbers where the model is evaluated",
            *(name, what, together, again),
        )
    elif abs(together - sum(apart)) > scale:
        raise UsageError(
            f"{name}: {what} is {together:.6g} for {len(ids)} samples together, but {sum(apart):.6g} for each alone, "
            "added up",
            HINT,
        )
    elif abs(sum(apart) - sum(alone)) > scale:
        logger.warning(
            "%s: padding changes what a sample gives, so that losses depend on who pads how much: %s is %.6g for %d "
            "samples padded to %d tokens, but %.6g without padding",
            *(name, what, sum(apart), len(ids), longest, sum(alone)),
        )


def _some(data: TokenisedData) -> IntArray:
    """Up to four samples that count something, of several of the shorter lengths; shape [n]."""
    counting = np.arange(len(data)) if data.weights is None else np.flatnonzero(data.weights)
    ordered: IntArray = counting[np.argsort(data.lengths[counting], kind="stable")]
    return ordered[sorted({0, min(1, len(ordered) - 1), len(ordered) // 8, len(ordered) // 4})]
