"""Under fully_shard on a device with streams, what its computing stream waits for is told as waiting, and only that.

The device is made up: tensors are on the CPU, streams have clocks of their own, and the host queues everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group, _fsdp_state
from torch.futures import Future

from dynbench.clock import NS_PER_MS
from dynbench.engine.rank.row_builder import hidden_ms
from dynbench.engine.rank.timers import StepTimer
from dynbench.runs.records import EVERYONE, Call
from dynbench.sync import fully_sharded
from dynbench.sync.fully_sharded import FullyShardedDDP
from dynbench.sync.fully_sharded_streams import Streams
from dynbench.wire.base import NullWire
from dynbench.wire.segment import Segment

CPU = torch.device("cpu")
FORWARD_MS, BACKWARD_MS, BLOCKS, RANKS = 4.0, 8.0, 3, 2


class Event:
    """A moment of a stream, ms."""

    def __init__(self, device: Device, ms: float = 0.0) -> None:
        self._device, self.ms = device, ms

    def record(self) -> None:
        self.ms = self._device.current_stream().ms


class Stream:
    """How far what is queued on it will have come, ms."""

    def __init__(self, device: Device) -> None:
        self._device, self.ms = device, 0.0

    def wait_event(self, event: Event) -> None:
        self.ms = max(self.ms, event.ms)

    def wait_stream(self, other: Stream) -> None:
        self.ms = max(self.ms, other.ms)

    def record_event(self) -> Event:
        return Event(self._device, self.ms)


class Device:
    """What torch asks of `torch.cuda`."""

    def __init__(self) -> None:
        self.compute, self.sending = Stream(self), Stream(self)
        self._current = [self.compute]
        self.computed: list[tuple[int, int]] = []

    def Stream(self, priority: int = 0) -> Stream:
        return Stream(self)

    def Event(self) -> Event:
        return Event(self)

    def current_stream(self) -> Stream:
        return self._current[-1]

    @contextmanager
    def stream(self, entered: Stream) -> Iterator[None]:
        self._current.append(entered)
        yield
        self._current.pop()

    def compute_for(self, ms: float) -> None:
        stream = self.current_stream()
        assert stream is self.compute
        self.computed.append((round(stream.ms * NS_PER_MS), round((stream.ms + ms) * NS_PER_MS)))
        stream.ms += ms


class Clock:
    """Marks on the current stream."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def mark(self) -> float:
        return self._device.current_stream().ms

    def elapsed_ms(self, start: float, end: float) -> float:
        return end - start

    def to_host_ns(self) -> Callable[[float], int]:
        return lambda mark: round(mark * NS_PER_MS)


class Sent(Future[Tensor]):
    """A collective that the stream which waits for it ends behind."""

    def __init__(self, device: Device, end: Event) -> None:
        super().__init__()
        self._device, self._end = device, end

    def wait(self) -> Tensor:
        self._device.current_stream().wait_event(self._end)
        return torch.empty(0)


class SlowWire(NullWire):
    """One collective after the other, each `ms` long, as NCCL has it on a stream of its own."""

    def __init__(self, device: Device, ms: float, group: dist.ProcessGroup) -> None:
        super().__init__(0, RANKS, group, echoes=True)
        self._device, self._ms = device, ms
        self.calls: list[Call] = []

    def mean_shard(self, flat: Tensor, segments: object, shard: Tensor) -> Future[Tensor]:
        super().mean_shard(flat, (), shard)
        return self._sent("reduce_scatter")

    def gather(self, full: Tensor, shard: Tensor, parts: Sequence[Segment] = ()) -> Future[Tensor]:
        super().gather(full, shard)
        return self._sent("all_gather")

    def _sent(self, operation: str) -> Future[Tensor]:
        self._device.sending.wait_stream(self._device.current_stream())
        start = self._device.sending.ms
        self._device.sending.ms += self._ms
        span = round(start * NS_PER_MS), round(self._device.sending.ms * NS_PER_MS)
        self.calls.append(Call(operation, EVERYONE, len(self.calls), 0, *span))
        return Sent(self._device, self._device.sending.record_event())


class Work(torch.autograd.Function):
    """Passes through, and takes its time."""

    @staticmethod
    def forward(ctx, x: Tensor, device: Device) -> Tensor:
        ctx.device = device
        device.compute_for(FORWARD_MS)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.device.compute_for(BACKWARD_MS)
        return gradient.clone(), None


class Block(nn.Module):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.layer, self._device = nn.Linear(4, 4), device

    def forward(self, x: Tensor) -> Tensor:
        return Work.apply(self.layer(x), self._device)


class Model(nn.Module):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList(Block(device) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.sum()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A process group of two of which one is here, and torch's FSDP on a device of streams."""
    import torch.testing._internal.distributed.fake_pg as fake

    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=RANKS)
    made = Device()
    for module in (_fsdp_collectives, _fsdp_param_group, _fsdp_state):
        monkeypatch.setattr(module, "_get_device_handle", lambda *_: made)
    monkeypatch.setattr(fully_sharded, "streams_of", lambda _, waiting: Streams(made, waiting))
    yield made
    dist.destroy_process_group()


class Step:
    """Steps of the model, and what a timer says of each."""

    def __init__(self, device: Device, ms: float, *, timed: bool = True, reshard: bool = True) -> None:
        assert dist.group.WORLD is not None
        self.device, self.wire = device, SlowWire(device, ms, dist.group.WORLD)
        self.timer = StepTimer(CPU)
        self.timer.clock = Clock(device)
        waiting = self.timer.waiting if timed else nullcontext
        self.module = FullyShardedDDP(
            Model(device), device=CPU, wire=self.wire, on_ready=self.timer.note_ready, waiting=waiting, reshard=reshard
        )

    def run(self, micro_batches: int = 1) -> dict[str, float]:
        self.device.computed.clear()
        self.wire.calls.clear()
        self.begun = self.device.compute.ms
        for number in range(micro_batches):
            last = number == micro_batches - 1
            with nullcontext() if last else self.module.no_sync():
                with self.timer.device("forward"):
                    loss = self.module(torch.ones(2, 4))
                with self.timer.backward():
                    loss.backward()
                    if last:
                        self.module.finish_gradient_synchronization()
        self.ended = self.device.compute.ms
        self.module.zero_grad()
        return dict(self.timer.take_phases())


def overlap_ms(step: Step) -> float:
    """How long something was sent while the device computed, by looking at every moment."""
    edges = sorted({edge for call in step.wire.calls for edge in (call.start_ns, call.end_ns)}
                   | {edge for span in step.device.computed for edge in span})  # fmt: skip
    both = 0
    for start, end in pairwise(edges):
        sends = any(call.start_ns <= start and end <= call.end_ns for call in step.wire.calls)
        computes = any(first <= start and end <= last for first, last in step.device.computed)
        both += (end - start) * (sends and computes)
    return both / NS_PER_MS


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("ms", [0.5, 3.0, 10.0, 40.0])
def test_phases_are_what_computes_and_all_else_is_sync(
    device: Device, ms: float, reshard: bool, micro_batches: int
) -> None:
    step = Step(device, ms, reshard=reshard)
    for _ in range(3):
        phases = step.run(micro_batches)
        forward, backward = (BLOCKS * micro_batches * each for each in (FORWARD_MS, BACKWARD_MS))
        assert (phases["forward"], phases["backward"]) == pytest.approx((forward, backward))
        assert phases["sync"] == pytest.approx(step.ended - step.begun - forward - backward)
        assert phases["sync"] > 0, "the last reduce-scatter at least"
        hidden = hidden_ms(step.wire.calls, step.timer.synchronised.spans_ns)
        assert hidden == pytest.approx(overlap_ms(step))


def test_what_is_not_told_counts_as_compute(device: Device) -> None:
    """Ten milliseconds for each gather and four for the block that hides it: six of each are in forward."""
    phases = Step(device, 10.0, timed=False).run()
    assert phases["forward"] > BLOCKS * FORWARD_MS + 2 * 6
    assert phases["backward"] > BLOCKS * BACKWARD_MS
