"""An ordered queue between the strategy and the channel, so that a compressor may need several collectives.

Started from futures of their predecessors, the collectives of two gradients would overtake each other differently on
each rank. Here one thread takes one job after the other, first in first out, on all ranks alike.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynbench.wire.base import Compressor, Wire, new_future
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], object]
    result: Tensor
    future: Future[Tensor]
    queued: torch.cuda.Event | None
    """When the tensors are ready, on CUDA."""


class QueuedWire(Wire):
    """Gradients travel as a compressor sends them, and everything else in turn with them.

    What a job raises comes out of its future, and of every later one: after it the ranks no longer agree on whose turn
    it is.

    Args:
        channel: the wire closes it.
        compressor: how gradients are averaged.
    """

    def __init__(self, channel: Channel, compressor: Compressor) -> None:
        super().__init__(channel)
        self._compressor = compressor
        self._group: dist.ProcessGroup | None = None
        self.columns = compressor.columns
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stream = _stream_of(channel.device)
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="dynbench-wire")
        self._thread.start()

    @property
    def group(self) -> dist.ProcessGroup:
        """One beside the channel's, as what torch sends by itself does not wait for its turn; at first a collective."""
        if self._group is None:
            ranks = dist.get_process_group_ranks(self._channel.group)
            self._group = dist.new_group(ranks, timeout=self._channel.timeout)
        return self._group

    def mean(self, flat: Tensor, segments: Sequence[Segment]) -> Future[Tensor]:
        """The compressor's mean."""

        def average() -> None:
            with self._averaging("all_reduce", flat):
                self._compressor.mean(self._channel, flat, segments)

        return self._queue(average, flat, flat)

    def mean_shard(self, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> Future[Tensor]:
        """The compressor's mean of this rank's shard."""

        def average() -> None:
            with self._averaging("reduce_scatter", flat):
                self._compressor.mean_shard(self._channel, flat, segments, shard)

        return self._queue(average, shard, flat)

    def row(self) -> Mapping[str, object]:
        """What the compressor says of the step that ended."""
        return self._compressor.row()

    def weigh(self, weight: float) -> None:
        """Handed on."""
        self._compressor.weigh(weight)

    def close(self) -> None:
        """Finish the job in progress, give up the others, and close the channel."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()
        if self._group is not None and self._channel.device.type != "cuda" and self._channel.ledger.idle:
            dist.destroy_process_group(self._group)
        self._group = None
        self._channel.close()

    def _begin(
        self, operation: Callable[[], Future[Tensor]], result: Tensor, handed_in: Tensor | None = None
    ) -> Future[Tensor]:
        """In turn with the gradients."""
        return self._queue(lambda: operation().wait(), result, handed_in)

    def _queue(self, work: Callable[[], object], result: Tensor, handed_in: Tensor | None) -> Future[Tensor]:
        self._hand_in(handed_in)
        queued = None
        if self._stream is not None:
            queued = torch.cuda.current_stream(self._channel.device).record_event()
            for tensor in (result, handed_in):
                if tensor is not None:
                    tensor.record_stream(self._stream)
        job = _Job(work, result, new_future(self._channel.device), queued)
        self._jobs.put(job)
        return job.future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            del job  # holds a gradient

    def _do(self, job: _Job) -> None:
        if self._closed and self.failure is None:
            self.failure = RuntimeError("the wire was closed before this was sent")
        if self.failure is None:
            try:
                with torch.no_grad(), self._on_stream(job):
                    job.work()
                    job.future.set_result(job.result)
                return
            except BaseException as error:  # whatever it is, the rank that waits for the future must be told
                self.failure = error
        job.future.set_exception(self.failure)  # type: ignore[arg-type]  # torch's annotation is wrong

    def _on_stream(self, job: _Job) -> AbstractContextManager[object]:
        if self._stream is None or job.queued is None:
            return nullcontext()
        self._stream.wait_event(job.queued)
        return torch.cuda.stream(self._stream)


def _stream_of(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch's
