"""PyTorch's DistributedDataParallel: buckets all-reduced while the backward pass still runs.

Also with torch's own optimizer of divided state, what `zero1` is compared with.
"""

import gc
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # missing from torch's stubs
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dynbench.plugins import options_of
from dynbench.plugins.strategies import DdpOptions
from dynbench.sync.base import OptimizerFactory, Strategy
from dynbench.sync.synchronised import check_same_model
from dynbench.wire.base import new_future
from dynbench.wire.segment import lay_out

_WITHOUT_BUFFERS = (
    partial(DistributedDataParallel, forward_sync_buffers=False)
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else partial(DistributedDataParallel, broadcast_buffers=False)
)

ONE_BUCKET_MB = 2.0**40
"""Larger than any model, MiB."""


class Ddp(Strategy):
    """DDP with a communication hook that notes when the last bucket is ready.

    DDP hands buckets to the hook in order, so the last one comes when every local gradient is complete. Buffers are
    not broadcast: that would be a collective inside the forward pass, and ranks would wait there unseen.
    """

    equal_gradients: ClassVar[bool] = True

    def _wrapped(self, model: nn.Module) -> nn.Module:
        check_same_model(model, self.wire)  # DDP does not look at types, and names no parameter
        device = next(model.parameters()).device
        self._sent: list[torch.futures.Future[torch.Tensor]] = []
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        options = options_of(self.settings, DdpOptions)
        self._ddp = _WITHOUT_BUFFERS(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=self.wire.group,
            bucket_cap_mb=ONE_BUCKET_MB if options.bucket_mb == "none" else options.bucket_mb,
            find_unused_parameters=options.find_unused,
            gradient_as_bucket_view=True,
        )
        self._ddp.register_comm_hook(None, self._synchronise)
        return self._ddp

    def accumulating(self) -> AbstractContextManager[None]:
        """DDP's `no_sync`."""
        return self._ddp.no_sync()

    def finish(self) -> None:
        """DDP's backward pass ends with its gradients synchronised; the wire may let go of what it sent of them."""
        for future in self._sent:
            future.wait()
        self._sent.clear()

    def close(self) -> None:
        """Break the cycle reducer, hook, strategy, DDP: part of it is in C++, where the garbage collector is blind.

        Left alone it keeps the process group alive until the interpreter is gone, and gloo's threads abort then.
        """
        self.__dict__.pop("module", None)
        self.__dict__.pop("_ddp", None)
        gc.collect()
        super().close()

    # DDP reads these annotations and refuses texts, so this file does without postponed evaluation.
    def _synchronise(self, _: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._sent.clear()  # of a pass that failed
        if bucket.is_last():
            self.on_ready()
        segments = lay_out((self._names[id(parameter)], parameter.shape) for parameter in bucket.parameters())
        future = self.wire.mean(bucket.buffer(), segments)
        self._sent.append(future)
        # DDP understands failures of futures that came from callbacks only.
        return future.then(lambda done: done.value())


class DdpNoop(Ddp):
    """DDP whose buckets stay what they are: every rank goes on from its own gradients."""

    equal_gradients: ClassVar[bool] = False

    # As above.
    def _synchronise(self, _: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self.on_ready()
        done = new_future(bucket.buffer().device)
        done.set_result(bucket.buffer())
        return done


class _Timed(ZeroRedundancyOptimizer):
    """Tells when it broadcasts."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], waiting: Callable[[], AbstractContextManager[None]], **kwargs: Any
    ) -> None:
        self._waiting = waiting
        super().__init__(parameters, **kwargs)

    def _sync_params(self) -> None:
        with self._waiting():
            super()._sync_params()  # type: ignore[misc]  # torch's has no types


class Zero1Torch(Ddp):
    """DDP with a ZeroRedundancyOptimizer, whose broadcasts after a step go past the wire and are not counted."""

    def build_optimizer(self, parameters: Iterable[nn.Parameter], factory: OptimizerFactory) -> Optimizer:
        """Over all parameters, each stepped by the rank that it is dealt to."""
        return _Timed(parameters, self.waiting, optimizer_class=factory, process_group=self.wire.group)
