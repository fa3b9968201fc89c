"""Under fully_shard on a device with streams, what its computing stream waits for is told as waiting, and only that.

The device is made up: tensors are on the CPU, streams have clocks of their own, and the host queues everything at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist
from set_clock import SetClock
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
Span = tuple[int, int]


class Stream:
    """How far what is queued on it will have come, ms; an event is a moment of one."""

    def __init__(self, device: Device, ms: float = 0.0) -> None:
        self._device, self.ms = device, ms

    def record(self) -> None:
        self.ms = self._device.current_stream().ms

    def record_event(self) -> Stream:
        return Stream(self._device, self.ms)

    def wait_stream(self, other: Stream) -> None:
        self.ms = max(self.ms, other.ms)

    wait_event = wait_stream

    def take(self, ms: float) -> Span:
        """From when to when something is done that takes so long, ns."""
        start, self.ms = self.ms, self.ms + ms
        return round(start * NS_PER_MS), round(self.ms * NS_PER_MS)


class Device(SetClock):
    """What torch asks of `torch.cuda`; and a clock of marks on the current stream."""

    def __init__(self) -> None:
        self.compute, self.sending = Stream(self), Stream(self)
        self._current = [self.compute]
        self.computed: list[Span] = []

    def Stream(self, priority: int = 0) -> Stream:
        return Stream(self)

    Event = Stream

    def current_stream(self) -> Stream:
        return self._current[-1]

    def mark(self) -> float:
        return self.current_stream().ms

    @contextmanager
    def stream(self, entered: Stream) -> Iterator[None]:
        self._current.append(entered)
        yield
        self._current.pop()

    def compute_for(self, ms: float) -> None:
        assert self.current_stream() is self.compute
        self.computed.append(self.compute.take(ms))


class Sent(Future[Tensor]):
    """A collective that the stream which waits for it ends behind."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device, self._end = device, device.sending.record_event()

    def wait(self) -> Tensor:
        self._device.current_stream().wait_event(self._end)
        return torch.empty(0)


class SlowWire(NullWire):
    """One collective after the other, each `ms` long, as NCCL has it on a stream of its own."""

    def __init__(self, device: Device, ms: float) -> None:
        super().__init__(0, RANKS, dist.group.WORLD, echoes=True)
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
        self.calls.append(Call(operation, EVERYONE, len(self.calls), 0, *self._device.sending.take(self._ms)))
        return Sent(self._device)


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


class Blocks(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        for block in self:
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

    def __init__(self, device: Device, ms: float, reshard: bool) -> None:
        self.device, self.wire, self.timer = device, SlowWire(device, ms), StepTimer(CPU)
        self.timer.clock = device
        told = {"on_ready": self.timer.note_ready, "waiting": self.timer.waiting}
        model = nn.Sequential(nn.Linear(4, 4), Blocks(Block(device) for _ in range(BLOCKS)))
        self.module = FullyShardedDDP(model, device=CPU, wire=self.wire, reshard=reshard, **told)

    def run(self, micro_batches: int = 1) -> dict[str, float]:
        self.device.computed.clear()
        self.wire.calls.clear()
        self.begun = self.device.compute.ms
        for left in reversed(range(micro_batches)):
            with self.module.no_sync() if left else nullcontext():
                with self.timer.device("forward"):
                    loss = self.module(torch.ones(2, 4))
                with self.timer.backward():
                    loss.backward()
                    if not left:
                        self.module.finish_gradient_synchronization()
        self.ended = self.device.compute.ms
        self.module.zero_grad()
        return dict(self.timer.take_phases())

    def overlap_ms(self) -> float:
        """How long something was sent while the device computed, by a look at every half millisecond."""
        sent = [(call.start_ns, call.end_ns) for call in self.wire.calls]
        looks = range(*(round(ms * NS_PER_MS) for ms in (self.begun, self.ended, 0.5)))
        both = [all(any(a <= at < b for a, b in spans) for spans in (sent, self.device.computed)) for at in looks]
        return sum(both) / 2


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("ms", [0.5, 3.0, 10.0, 40.0])
def test_phases_are_what_computes_and_all_else_is_sync(
    device: Device, ms: float, reshard: bool, micro_batches: int
) -> None:
    step = Step(device, ms, reshard)
    for _ in range(3):
        phases = step.run(micro_batches)
        forward, backward = (BLOCKS * micro_batches * each for each in (FORWARD_MS, BACKWARD_MS))
        assert (phases["forward"], phases["backward"]) == pytest.approx((forward, backward))
        assert phases["sync"] == pytest.approx(step.ended - step.begun - forward - backward)
        sent = [call.operation for call in step.wire.calls].count("reduce_scatter")
        assert phases["sync"] > 0 and sent == BLOCKS + 1, "of every block and of the rest"
        hidden = hidden_ms(step.wire.calls, step.timer.synchronised.spans_ns)
        assert hidden == pytest.approx(step.overlap_ms())
