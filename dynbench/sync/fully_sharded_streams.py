"""Blocks of a fully sharded model, their messages and streams.

On a GPU torch lets the computing stream wait for a block's gather before the block is copied out, and for a
reduce-scatter before the next begins. The same waits are made here just before torch makes them, within `waiting`:
nothing changes but that they are timed. The next reduce-scatter finds its stream level with the computing one, and a
mark there says when gradients are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin
from torch.futures import Future

from dynbench.wire.base import Wire
from dynbench.wire.segment import Segment, lay_out


def blocks_of(module: nn.Module, *, listed: bool = False) -> list[nn.Module]:
    """The members of the outermost `nn.ModuleList`s that are made of further modules, in the module's order.

    Of a member that is never called, as of a list in a list, its own members. A list of single layers is no list of
    blocks: code may use their weights without calling them.

    Args:
        module: a model.
        listed: it is such a list itself.
    """
    found: list[nn.Module] = []
    for child in module.children():
        if not listed or not _is_called(child):
            found += blocks_of(child, listed=listed or isinstance(child, nn.ModuleList))
        elif next(child.children(), None) is not None:
            found.append(child)
    return found


def _is_called(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


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
        layouts: by its elements, what a shard is made of.
    """

    def __init__(
        self, wire: Wire, waiting: Waiting, streams: Streams | None, layouts: Mapping[int, Sequence[Segment]]
    ) -> None:
        self._wire, self._waiting, self._streams, self._layouts = wire, waiting, streams, layouts
        self.end: Any = None
        """Of the last gather on a stream, an event; None once it was waited for."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather; what torch waits for, or None where nothing is left to wait for."""
        # Of parameters of several types torch makes bytes, whose parts are not known.
        parts = self._layouts.get(len(input_tensor), ()) if input_tensor.is_floating_point() else ()
        future = self._wire.gather(output_tensor, input_tensor, parts)
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
        shard = parameter.sharded_param
        hooks = getattr(shard, "_post_accumulate_grad_hooks", None)
        return shard.dtype != output.dtype or shard.grad is not None or bool(hooks)


Waiting = Callable[[], AbstractContextManager[None]]


class Streams:
    """The computing stream beside those of fully_shard.

    Args:
        handle: torch's module of the kind of device, as `torch.cuda`.
        waiting: entered around what the computing stream waits for.
    """

    def __init__(self, handle: Any, waiting: Waiting) -> None:
        self._handle, self._waiting = handle, waiting
        self._scattered: Any = None

    def end(self) -> Any:
        """The end of what was queued on the current stream, an event."""
        return self._handle.current_stream().record_event()

    def watch(self, group: Any, gather: Gather, scatter: Scatter) -> None:
        """Time what the computing stream waits for in a parameter group of torch's, which sends by these."""
        wait_for_unshard, post_backward = group.wait_for_unshard, group.post_backward

        def wait_for_gather() -> None:
            self._wait_for(gather.end)
            gather.end = None
            wait_for_unshard()

        def wait_for_scatter(*unused: Any) -> None:
            self._wait_for(self._scattered)
            post_backward(*unused)
            self._scattered, scatter.end = scatter.end, None

        group.wait_for_unshard, group.post_backward = wait_for_gather, wait_for_scatter

    def _wait_for(self, event: Any) -> None:
        if event is not None:
            with self._waiting():
                self._handle.current_stream().wait_event(event)


def streams_of(device: torch.device, waiting: Waiting) -> Streams | None:
    """Those of a device; None of a CPU, which has none."""
    return None if device.type == "cpu" else Streams(torch.get_device_module(device), waiting)
