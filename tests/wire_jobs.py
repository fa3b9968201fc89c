"""What warm ranks do with channels and wires; bytes that the kernel counts, and clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from toys import TwoStages

from dynbench.config.schema import Compress
from dynbench.engine.rank.exchange import compare_clocks
from dynbench.engine.rank.row_builder import SentBytes
from dynbench.wire.base import NullWire, QueuedWire, Wire
from dynbench.wire.channel import BROADCAST_FROM, Channel, Link
from dynbench.wire.segment import Segment, lay_out
from dynbench.wire.traffic import Traffic

CPU = torch.device("cpu")
MINUTE = timedelta(minutes=1)
ONE = lay_out([("weight", [4])])


def every_operation(rank: int, name: str) -> tuple[dict[str, list[float]], Traffic]:
    """Results of every operation on 4 elements of a type, those of rank r being r + 1, 2(r + 1), …"""
    dtype = getattr(torch, name)

    def mine() -> Tensor:
        return (torch.arange(1.0, 5.0) * (rank + 1)).to(dtype)

    def empty(elements: int = 4) -> Tensor:
        return torch.empty(elements, dtype=dtype)

    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        results = {}
        if name not in ("int16", "float8_e4m3fn"):
            results["all_reduce"] = channel.all_reduce(mine()).wait()
            results["reduce_scatter"] = channel.reduce_scatter(empty(2), mine()).wait()
        results["all_gather"] = channel.all_gather(empty(8), mine()).wait()
        results["all_to_all"] = channel.all_to_all(empty(), mine()).wait()
        results["broadcast"] = channel.broadcast(mine(), 1).wait()
        if rank == 0:
            channel.send(mine(), 1).wait()
        results["receive"] = channel.receive(empty(), 1 - rank).wait()
        if rank == 1:
            channel.send(mine(), 0).wait()
        return {operation: tensor.double().tolist() for operation, tensor in results.items()}, channel.ledger.take()


def large_gather(rank: int) -> bool:
    """Whether a gather of many bytes, again and again, gives every rank's in its place."""
    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        for step in range(3):
            mine = torch.full((BROADCAST_FROM // 4 + 3,), float(rank + 2 * step))
            full = channel.all_gather(torch.empty(2 * len(mine)), mine).wait()
            if not torch.equal(full, torch.cat([torch.full_like(mine, float(each + 2 * step)) for each in range(2)])):
                return False
        calls = channel.ledger.take().calls
        return [(call.operation, call.bytes_wire) for call in calls] == [("all_gather", mine.nbytes)] * 3


def charged(rank: int, native: bool) -> list[int]:
    """Bytes that a link is charged for a reduce-scatter of 32 bytes."""
    sizes: list[int] = []
    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        channel.native_reduce_scatter, channel.link = native, Link(1.0)
        carry = channel.link.carry
        with patch.object(channel.link, "carry", lambda *given: sizes.append(given[1]) or carry(*given)):
            channel.reduce_scatter(torch.empty(4), torch.ones(8)).wait()
    return sizes


def make_wire(kind: str, rank: int) -> Wire:
    """A wire by its kind; queued ones have a compressor that changes nothing but roundings."""
    if kind == "null":
        return NullWire(rank, 2)
    channel = Channel.of_its_own(CPU, MINUTE)
    if kind == "linked":
        channel.link = Link(0.01)
    return Wire(channel) if kind in ("plain", "linked") else QueuedWire(channel, TwoStages(Compress()))


def every_verb(rank: int, kind: str) -> tuple[dict[str, list[float]], Traffic]:
    """Results of every verb, all asked for before the first is waited for; no process group is left of the wire."""
    flat, segments = torch.arange(1.0, 5.0) * (rank + 1), lay_out([("a", [3]), ("b", [1])])
    groups = dist.distributed_c10d._world.pg_map
    before = len(groups)
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
        results = {verb: future.wait().tolist() for verb, future in futures.items()}, wire.take()
    assert len(groups) == before
    return results


def over_a_link(rank: int, gbps: float, sizes: Sequence[int]) -> tuple[float, float, float, list[float]]:
    """Over a link: seconds until gradients of so many elements, handed in at once, have arrived; ms under way; seconds
    until a tensor of the first size has arrived from rank 1; and the means."""
    channel = Channel.of_its_own(CPU, MINUTE)
    channel.link = Link(gbps)
    with closing(Wire(channel)) as wire:
        begun = time.monotonic()
        futures = [wire.mean(torch.full((size,), rank + 1.0), lay_out([("weight", [size])])) for size in sizes]
        means = [float(future.wait().mean()) for future in futures]
        averaged, busy_ms = time.monotonic(), wire.take().busy_ms
        wire.broadcast(torch.full((sizes[0],), rank + 1.0), 1).wait()
        return averaged - begun, busy_ms, time.monotonic() - averaged, means


def ends_of(futures: Sequence[Future[Tensor]]) -> list[str]:
    """By future, its result or the text of its error."""
    found = []
    for future in futures:
        try:
            found.append(str(future.wait().tolist()))
        except (ArithmeticError, RuntimeError) as error:
            found.append(str(error))
    return found


class FailsAlike(TwoStages):
    """Raises on all ranks, so that they live on."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        super().mean(channel, flat, segments)
        if self.calls == 3:
            raise ArithmeticError("cannot compress")


def after_a_failure(rank: int) -> list[str]:
    """The ends of five gradients on a wire that fails at the third; none may hang."""
    wire = QueuedWire(Channel.of_its_own(CPU, MINUTE), FailsAlike(Compress()))
    found = ends_of([wire.mean(torch.ones(4), ONE) for _ in range(5)])
    assert isinstance(wire.failure, ArithmeticError)
    wire.close()
    return found


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
    """The ends of gradients whose wire is closed while the first of them is sent."""
    compressor = Waits(Compress())
    wire = QueuedWire(Channel.of_its_own(CPU, MINUTE), compressor)
    futures = [wire.mean(torch.ones(4), ONE) for _ in range(3)]
    compressor.started.wait()
    closing_thread = threading.Thread(target=wire.close)
    closing_thread.start()
    while not wire._closed:
        time.sleep(0.001)
    compressor.go_on.set()
    found = ends_of(futures)
    closing_thread.join()
    return found


def beyond_the_formula(
    rank: int, operation: str, elements: int, calls: int, past_the_wire: bool = False
) -> tuple[float, float]:
    """Bytes of many calls that the kernel counts over those of the formula, and beyond them per call and other rank.

    The planted fault sends as much again past the channel.
    """
    others = dist.get_world_size() - 1
    tensor, full = torch.ones(elements), torch.ones(elements * (others + 1))
    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        begin: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: channel.all_reduce(tensor),
            "all_gather": lambda: channel.all_gather(full, tensor),
            "reduce_scatter": lambda: channel.reduce_scatter(tensor, full),
            "all_to_all": lambda: channel.all_to_all(full.clone(), full),
            "send": lambda: channel.send(tensor, rank ^ 1),
        }

        def call() -> None:
            futures = [channel.receive(tensor.clone(), rank ^ 1)] if operation == "send" else []
            for future in (*futures, begin[operation]()):
                future.wait()
            if past_the_wire:
                dist.all_reduce(tensor)

        call()
        channel.ledger.take()
        dist.barrier()
        sent = SentBytes(counts=True)
        for _ in range(calls):
            call()
        dist.barrier()
        counted = sent.take()
        dist.barrier()  # a rank that closes its group closes the other's connections, with what they counted
        assert counted is not None
        calculated = channel.ledger.take().bytes_wire
        return counted / calculated, (counted - calculated) / calls / others


def clocks_apart(rank: int, ahead_s: float) -> tuple[dict[str, object], dict[str, object]]:
    """What rank 0 finds where the clock of rank 1 is ahead, and goes by another name; and as they are."""
    ahead = compare_clocks(lambda: time.perf_counter_ns() + round(ahead_s * 1e9) * rank, f"clock {rank}")
    return dict(ahead), dict(compare_clocks())
