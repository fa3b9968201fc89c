"""Half precision as torch's DistributedDataParallel has it: a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from dynbench.compress.base import Compressor
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment


class Fp16Torch(Compressor):
    """`fp16_compress_hook` on each flat gradient; under `ddp` these are DistributedDataParallel's buckets.

    Its all-reduce is its own, and is counted by what it hands in: two bytes for each element.
    """

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """Rounded, divided and summed in half precision, and written back."""
        bucket = cast("dist.GradBucket", (flat,))  # type: ignore[name-defined]  # as compiled autograd hands it one
        sent = torch.empty(flat.shape, dtype=torch.float16, device="meta")
        channel.all_reduce_by(lambda: fp16_compress_hook(channel.group, bucket), sent, flat).wait()
