"""PyTorch's DistributedDataParallel: buckets all-reduced while the backward pass still runs."""

import gc
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # missing from torch's stubs
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from dynbench.config.schema import Sync
from dynbench.sync.base import Strategy

_WITHOUT_BUFFERS = (
    partial(DistributedDataParallel, forward_sync_buffers=False)
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else partial(DistributedDataParallel, broadcast_buffers=False)
)


class Ddp(Strategy):
    """DDP with a communication hook that notes when the last bucket is ready.

    DDP hands buckets to the hook in order, so the last one comes when every local gradient is complete. Buffers are
    not broadcast: that would be a collective inside the forward pass, and ranks would wait there unseen.
    """

    equal_gradients: ClassVar[bool] = True

    def __init__(self, model: nn.Module, settings: Sync, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        device = next(model.parameters()).device
        self.module = self._ddp = _WITHOUT_BUFFERS(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=settings.bucket_mb,
            gradient_as_bucket_view=True,
        )
        self._ddp.register_comm_hook(dist.group.WORLD, self._synchronise)

    def accumulating(self) -> AbstractContextManager[None]:
        """DDP's `no_sync`."""
        return self._ddp.no_sync()

    def finish(self) -> None:
        """Nothing to do: DDP's backward pass ends with its gradients synchronised."""

    def close(self) -> None:
        """Break the cycle reducer, hook, strategy, DDP: part of it is in C++, where the garbage collector is blind.

        Left alone it keeps the process group alive until the interpreter is gone, and gloo's threads abort then.
        """
        del self.module, self._ddp
        gc.collect()

    # DDP reads these annotations and refuses texts, so this file does without postponed evaluation.
    def _synchronise(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self._on_ready()
        return allreduce_hook(group, bucket)
