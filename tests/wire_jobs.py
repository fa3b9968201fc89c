"""What warm ranks do with channels and wires."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from toys import TwoStages

from dynbench.config.schema import Compress
from dynbench.wire.base import NullWire, PlainWire, Wire
from dynbench.wire.channel import BROADCAST_FROM, Channel, Link
from dynbench.wire.queued import QueuedWire
from dynbench.wire.segment import Segment, lay_out
from dynbench.wire.traffic import Traffic

CPU = torch.device("cpu")
MINUTE = timedelta(minutes=1)


def every_operation(rank: int, name: str) -> tuple[dict[str, list[float]], Traffic]:
    """Results of every operation on 4 elements of a type, those of rank r being r + 1, 2(r + 1), …"""
    dtype = getattr(torch, name)
    results: dict[str, list[float]] = {}

    def mine() -> Tensor:
        return (torch.arange(1.0, 5.0) * (rank + 1)).to(dtype)

    def keep(operation: str, tensor: Tensor) -> None:
        results[operation] = tensor.double().tolist()

    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        if name not in ("int16", "float8_e4m3fn"):
            keep("all_reduce", channel.all_reduce(mine()).wait())
            keep("reduce_scatter", channel.reduce_scatter(torch.empty(2, dtype=dtype), mine()).wait())
        keep("all_gather", channel.all_gather(torch.empty(8, dtype=dtype), mine()).wait())
        keep("all_to_all", channel.all_to_all(torch.empty(4, dtype=dtype), mine()).wait())
        keep("broadcast", channel.broadcast(mine(), 1).wait())
        if rank == 0:
            channel.send(mine(), 1).wait()
            keep("receive", channel.receive(torch.empty(4, dtype=dtype), 1).wait())
        else:
            keep("receive", channel.receive(torch.empty(4, dtype=dtype), 0).wait())
            channel.send(mine(), 0).wait()
        return results, channel.ledger.take()


def large_gather(rank: int) -> bool:
    """Whether a gather of many bytes, again and again, gives every rank's in its place."""
    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        for step in range(3):
            mine = torch.full((BROADCAST_FROM // 4 + 3,), float(rank + 2 * step))
            full = channel.all_gather(torch.empty(2 * len(mine)), mine).wait()
            if not torch.equal(full, torch.cat([torch.full_like(mine, float(each + 2 * step)) for each in range(2)])):
                return False
        tally = channel.ledger.take().operations["all_gather"]
        return (tally.calls, tally.bytes_in) == (3, 3 * mine.nbytes)


def charged(rank: int, native: bool) -> list[int]:
    """Bytes that a link is charged for a reduce-scatter of 32 bytes."""
    sizes: list[int] = []
    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        channel.native_reduce_scatter, channel.link = native, Link(1.0)
        carry = channel.link.carry

        def noting(operation: str, nbytes: int, begin: Any) -> Any:
            sizes.append(nbytes)
            return carry(operation, nbytes, begin)

        with patch.object(channel.link, "carry", noting):
            channel.reduce_scatter(torch.empty(4), torch.ones(8)).wait()
    return sizes


def make_wire(kind: str, rank: int) -> Wire:
    """A wire by its kind; queued ones have a compressor that changes nothing but roundings."""
    if kind == "null":
        return NullWire(rank, 2)
    channel = Channel.of_its_own(CPU, MINUTE)
    if kind == "linked":
        channel.link = Link(0.01)
    return PlainWire(channel) if kind in ("plain", "linked") else QueuedWire(channel, TwoStages(Compress()))


def every_verb(rank: int, kind: str) -> tuple[dict[str, list[float]], Traffic]:
    """Results of every verb, all asked for before the first is waited for."""
    flat, segments = torch.arange(1.0, 5.0) * (rank + 1), lay_out([("a", [3]), ("b", [1])])
    with closing(make_wire(kind, rank)) as wire:
        assert (wire.rank, wire.world_size) == (rank, 2)
        futures = {
            "mean": wire.mean(flat.clone(), segments),
            "mean_shard": wire.mean_shard(flat.clone(), segments, torch.empty(2)),
            "gather": wire.gather(torch.zeros(4), flat[:2].clone()),
            "broadcast": wire.broadcast(flat.clone(), 1),
        }
        if rank == 0:
            futures["send"] = wire.send(flat.clone(), 1)
        else:
            futures["receive"] = wire.receive(torch.zeros(4), 0)
        return {verb: future.wait().tolist() for verb, future in futures.items()}, wire.take()


def over_a_link(rank: int, gbps: float, sizes: Sequence[int]) -> tuple[float, float, list[float]]:
    """Seconds until gradients of so many elements, handed in at once, have arrived; ms under way; all means."""
    channel = Channel.of_its_own(CPU, MINUTE)
    channel.link = Link(gbps)
    with closing(PlainWire(channel)) as wire:
        begun = time.monotonic()
        futures = [wire.mean(torch.full((size,), rank + 1.0), lay_out([("weight", [size])])) for size in sizes]
        means = [float(future.wait().mean()) for future in futures]
        return time.monotonic() - begun, wire.take().busy_ms, means


def broadcast_over_a_link(rank: int, gbps: float, size: int) -> float:
    """Seconds until a tensor of so many elements has arrived from rank 1."""
    channel = Channel.of_its_own(CPU, MINUTE)
    channel.link = Link(gbps)
    with closing(PlainWire(channel)) as wire:
        begun = time.monotonic()
        wire.broadcast(torch.full((size,), rank + 1.0), 1).wait()
        return time.monotonic() - begun


def after_a_failure(rank: int) -> list[str]:
    """What the futures of five gradients raise on a wire that fails at the third; none may hang."""
    wire = QueuedWire(Channel.of_its_own(CPU, MINUTE), FailsAlike(Compress()))
    futures = [wire.mean(torch.ones(4), lay_out([("weight", [4])])) for _ in range(5)]
    said = []
    for future in futures:
        try:
            said.append(str(future.wait().tolist()))
        except ArithmeticError as error:
            assert wire.failure is error
            said.append(str(error))
    wire.close()
    return said


class FailsAlike(TwoStages):
    """Raises on all ranks, so that they live on."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        super().mean(channel, flat, segments)
        if self.calls == 3:
            raise ArithmeticError("cannot compress")


class Waits(TwoStages):
    """Holds the queue up until it is told to go on."""

    def __init__(self, settings: Compress) -> None:
        super().__init__(settings)
        self.started, self.go_on = threading.Event(), threading.Event()

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        self.started.set()
        self.go_on.wait()
        super().mean(channel, flat, segments)


def closed_with_work_left(rank: int) -> list[str]:
    """What becomes of gradients whose wire is closed while the first of them is sent."""
    compressor = Waits(Compress())
    wire = QueuedWire(Channel.of_its_own(CPU, MINUTE), compressor)
    futures = [wire.mean(torch.ones(4), lay_out([("weight", [4])])) for _ in range(3)]
    compressor.started.wait()
    closing_thread = threading.Thread(target=wire.close)
    closing_thread.start()
    while not wire._closed:
        time.sleep(0.001)
    compressor.go_on.set()
    said = []
    for future in futures:
        try:
            said.append(str(future.wait().tolist()))
        except RuntimeError as error:
            said.append(str(error))
    closing_thread.join()
    return said


def groups_left(rank: int) -> tuple[int, int]:
    """Process groups before and after a wire of its own was made and closed."""
    before = len(dist.distributed_c10d._world.pg_map)
    wire = make_wire("queued", rank)
    wire.mean(torch.ones(4), lay_out([("weight", [4])])).wait()
    wire.take()
    wire.close()
    return before, len(dist.distributed_c10d._world.pg_map)
