"""The gathers and reduce-scatters of torch's fully_shard on a wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin
from torch.futures import Future

from dynbench.sync.fully_sharded_streams import Streams, Waiting
from dynbench.wire.base import Wire
from dynbench.wire.segment import Segment, lay_out


class _UnderWay(dist.Work):
    """A gather on the wire, as torch waits for one."""

    def __init__(self, future: Future[Tensor], waiting: Waiting) -> None:
        super().__init__()
        self._future, self._waiting = future, waiting

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is done; a wire has a limit of its own."""
        with self._waiting():
            self._future.wait()
        return True


class Gather(DefaultAllocMixin, AllGather):
    """On the wire, in place; on a CPU under way when it returns.

    Args:
        wire: the wire.
        waiting: entered while it is waited for.
        streams: of a device that has several.
    """

    def __init__(self, wire: Wire, waiting: Waiting, streams: Streams | None) -> None:
        self._wire, self._waiting, self._streams = wire, waiting, streams
        self.end: Any = None
        """Of the last gather on a stream, an event; None once it was waited for."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather; what torch waits for, or None where nothing is left to wait for."""
        future = self._wire.gather(output_tensor, input_tensor)
        if self._streams is None:
            return _UnderWay(future, self._waiting)
        future.wait()
        self.end = self._streams.end()
        return None


class Scatter(DefaultAllocMixin, ReduceScatter):
    """On the wire, which averages; `under_way` when it returns where nothing looks at it before all are waited for.

    Args:
        wire: the wire.
        waiting: entered while it is waited for.
        streams: of a device that has several.
        sending: called before.
        parameters: whose gradients it is called with.
        layouts: by its elements, what is sent is made of.
        under_way: what is to be waited for.
    """

    def __init__(
        self,
        wire: Wire,
        waiting: Waiting,
        streams: Streams | None,
        sending: Callable[[], None],
        parameters: Sequence[Any],
        layouts: Mapping[int, Sequence[Segment]],
        under_way: list[Future[Tensor]],
    ) -> None:
        self._wire, self._waiting, self._streams, self._sending = wire, waiting, streams, sending
        self._parameters, self._layouts, self._under_way = parameters, layouts, under_way
        self.end: Any = None
        """Of the last reduce-scatter on a stream, an event."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """Begin to average, and wait where torch looks at the output as this returns."""
        self._sending()
        segments = self._layouts.get(len(input_tensor))
        if segments is None:  # torch before 2.13 leaves out what this rank has not used
            segments = lay_out(
                [(f"{next(iter(self._layouts.values()))[0].name}/{len(input_tensor)}", input_tensor.shape)]
            )
        future = self._wire.mean_shard(input_tensor, segments, output_tensor)
        if self._streams is not None:
            future.wait()
            self.end = self._streams.end()
        elif any(self._read(each, output_tensor) for each in self._parameters):
            with self._waiting():
                future.wait()
        else:
            self._under_way.append(future)

    @staticmethod
    def _read(parameter: Any, output: Tensor) -> bool:
        """Whether torch casts the output, adds it to a gradient, or calls back with it, as it returns."""
        held = parameter.sharded_param
        hooks = getattr(held, "_post_accumulate_grad_hooks", None)
        return held.dtype != output.dtype or held.grad is not None or bool(hooks)
