"""Classification: cross entropy summed, and how many samples were right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def grade(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy summed over the samples, and the number of right answers, both scalars on the device.

    Half precision is raised to fp32 for the softmax, double stays double.

    Args:
        logits: shape [n, classes].
        labels: shape [n].
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    right = (logits.detach().argmax(dim=-1) == labels).sum()
    return F.cross_entropy(logits, labels, reduction="sum"), right
