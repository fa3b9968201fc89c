"""What the computing stream waits for under fully_shard on a GPU, where gathers and reduce-scatters have their own.

Torch lets it wait for a block's gather before the block is copied out, and for a reduce-scatter before the next begins.
The same waits are made here just before torch makes them, within `waiting`: nothing changes but that they are told.
The next reduce-scatter finds its stream level with the computing one, and a mark there says when gradients are ready.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dynbench.sync.fully_sharded_messages import Gather, Scatter

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
        """Tell what the computing stream waits for in a parameter group of torch's, which sends by these."""
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
