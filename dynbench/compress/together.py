"""Several tensors averaged in one message."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dynbench.wire.channel import Channel


def average(channel: Channel, tensors: Sequence[Tensor]) -> None:
    """Their means over ranks, in place; of one type, and of the same shapes on all ranks."""
    together = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(channel.world_size)
    channel.all_reduce(together).wait()
    for tensor, mean in zip(tensors, torch.split(together, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))
