"""Raw collectives of one process group, each counted, timed, and a range of its own in a profile.

Every operation returns at once with a future of its result. What gloo lacks is made up for here: it has no future for a
reduce-scatter, which besides costs it as much as an all-reduce, nor for sends and receives, and it refuses some types.
A slower link may be emulated: what is sent arrives no sooner than over a link of so many bits a second.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.futures import Future

from dynbench.clock import clock_for
from dynbench.runs.records import EVERYONE
from dynbench.wire.segment import named_range
from dynbench.wire.traffic import SENT, Ledger

BITS_PER_GBIT = 1e9
"""As speeds of links are given."""


@dataclass
class Arrivals:
    """When what a rank sends has arrived, over a link of its own that carries one call after the other; seconds.

    What the machine itself takes to move the bytes goes on beside the link: a call takes the longer of the two, from
    when the last rank has called. When that was, nobody says; it is taken to be what the machine has moved the bytes
    of such a call in at best before they were moved.

    Args:
        bytes_per_s: of the link.
    """

    bytes_per_s: float
    _free: float = float("-inf")
    _best: dict[str, float] = field(default_factory=dict)

    def arrives(self, operation: str, nbytes: int, called: float, moved: float) -> float:
        """When a call is complete that this rank made at one time, and that was moved within the machine at another."""
        took = (moved - called) / nbytes if nbytes else 0.0
        best = self._best[operation] = min(took, self._best.get(operation, took))
        begun = max(self._free, moved - best * nbytes)
        self._free = max(moved, begun + nbytes / self.bytes_per_s)
        return self._free


class Link:
    """Holds back what was moved until it would have arrived.

    Args:
        gbps: speed, Gb/s.
    """

    def __init__(self, gbps: float) -> None:
        self._arrivals = Arrivals(gbps * BITS_PER_GBIT / 8)
        self._lock = threading.Lock()
        self._deliveries: queue.SimpleQueue[tuple[float, Future[object]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, daemon=True, name="dynbench-link").start()

    def carry(self, operation: str, nbytes: int, begin: Callable[[], Future[Any]]) -> Future[object]:
        """Begin a call, which moves so many bytes over this rank's link; the future is that of their arrival."""
        called = time.monotonic()
        arrived: Future[object] = Future()

        def moved(done: Future[Any]) -> None:
            try:
                done.value()
            except Exception as error:  # torch's, of whatever went wrong in the group
                arrived.set_exception(error)
                return
            with self._lock:
                due = self._arrivals.arrives(operation, nbytes, called, time.monotonic())
                self._deliveries.put((due, arrived))

        begin().add_done_callback(moved)
        return arrived

    def close(self) -> None:
        """Nothing is sent any more."""
        self._deliveries.put(None)

    def _deliver(self) -> None:
        while (delivery := self._deliveries.get()) is not None:
            due, arrived = delivery
            time.sleep(max(0.0, due - time.monotonic()))
            arrived.set_result(None)


_SENT_AS_THEY_ARE = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
)
"""Types that gloo moves; others travel as bytes, which it never looks into."""

BROADCAST_FROM = 2**16
"""Bytes of a shard from which gloo's broadcasts are quicker than its all-gather."""


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Channel:
    """The collectives of one process group.

    Calls have to come in the same order on all ranks. Tensors are contiguous and on the channel's device. On CUDA a
    result is ready for work that is queued after its future was waited for.

    Args:
        group: None for the default group.
        device: where the tensors are.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | None = None) -> None:
        found = dist.group.WORLD if group is None else group
        assert found is not None, "torch.distributed.init_process_group comes first"
        self.group: dist.ProcessGroup = found
        self.device = device or torch.device("cpu")
        self.rank = dist.get_rank(self.group)
        self.world_size = dist.get_world_size(self.group)
        self.ledger = Ledger(clock_for(self.device))
        self._gloo = _backend(self.group, self.device) == "gloo"
        self.timeout: timedelta | None = None
        """Longest wait, of a group of its own."""
        self._own = False
        self._spare: list[Tensor] = []
        self.link: Link | None = None
        """Over which everything goes; None is as fast as it goes."""
        self.native_reduce_scatter = not self._gloo
        """Whether the back end's own is used, which gloo does at the price of an all-reduce."""

    @classmethod
    def of_its_own(cls, device: torch.device, timeout: timedelta) -> Channel:
        """A channel over a new group of all ranks, so that nothing else comes between its calls; a collective."""
        group = dist.new_group(timeout=timeout)
        channel = cls(group, device)
        channel._own, channel.timeout = True, timeout
        return channel

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Future[Tensor]:
        """Combine a tensor of all ranks in place."""
        return self._run("all_reduce", tensor, tensor, self._of_group(dist.all_reduce, tensor, op))

    def all_reduce_by(self, begin: Callable[[], Future[Any]], sent: Tensor, result: Tensor) -> Future[Tensor]:
        """An all-reduce over this channel's group that other code begins.

        Args:
            begin: gives its future.
            sent: of the shape and type of what it hands in; its values are not looked at.
            result: what it writes.
        """
        return self._run("all_reduce", sent, result, begin)

    def reduce_scatter(self, shard: Tensor, full: Tensor) -> Future[Tensor]:
        """The sum over ranks of this rank's part of `full`, shape [G*n], into `shard`, shape [n]."""
        if self.native_reduce_scatter:
            return self._run("reduce_scatter", full, shard, self._of_group(_reduce_scatter, shard, full))
        parts = self._scratch(full)

        def add_up() -> None:
            torch.sum(parts.view(self.world_size, -1), 0, out=shard.view(-1))
            self._spare.append(parts)

        return self._run("reduce_scatter", full, shard, self._of_group(dist.all_to_all_single, parts, full), add_up)

    def _scratch(self, like: Tensor) -> Tensor:
        """Memory that an earlier call has done with, or new: the first touch of new memory costs as much as its use."""
        for place, spare in enumerate(self._spare):
            if (spare.shape, spare.dtype) == (like.shape, like.dtype):
                return self._spare.pop(place)
        return torch.empty_like(like)

    def all_gather(self, full: Tensor, shard: Tensor) -> Future[Tensor]:
        """Every rank's `shard`, shape [n], in order of rank into `full`, shape [G*n]."""
        if self._gloo and nbytes(shard) >= BROADCAST_FROM:
            return self._all_broadcast(full, shard)
        begin = self._of_group(_all_gather, self._movable(full), self._movable(shard))
        return self._run("all_gather", shard, full, begin)

    def _all_broadcast(self, full: Tensor, shard: Tensor) -> Future[Tensor]:
        """The same by a broadcast of each rank, straight to where it belongs: gloo's own copies all of it twice."""
        parts = self._movable(full).view(-1).chunk(self.world_size)
        futures: list[Future[object]] = []

        def begin() -> Future[list[Future[object]]]:
            parts[self.rank].copy_(self._movable(shard).view(-1))
            for source, part in enumerate(parts):
                work = dist.broadcast(part, group_src=source, group=self.group, async_op=True)
                assert work is not None, "this rank is in the group"
                futures.append(work.get_future())
            return torch.futures.collect_all(futures)

        return self._run("all_gather", shard, full, begin, lambda: [future.value() for future in futures])

    def all_to_all(self, received: Tensor, given: Tensor) -> Future[Tensor]:
        """Part i of `given`, shape [G*n], to rank i; rank i's part for this rank becomes part i of `received`."""
        begin = self._of_group(dist.all_to_all_single, self._movable(received), self._movable(given))
        return self._run("all_to_all", given, received, begin)

    def broadcast(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """The tensor of rank `source` on all ranks, in place."""
        begin = self._of_group(dist.broadcast, self._movable(tensor), group_src=source)
        return self._run("broadcast", tensor, tensor, begin)

    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        """The tensor to rank `to`, which receives it."""
        begin = partial(dist.isend, self._movable(tensor), group_dst=to, group=self.group)
        return self._run("send", tensor, tensor, begin, peer=to)

    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        """What rank `source` sends, into `tensor`."""
        begin = partial(dist.irecv, self._movable(tensor), group_src=source, group=self.group)
        return self._run("receive", tensor, tensor, begin, peer=source)

    def _of_group(self, call: Callable[..., Any], *given: object, **named: object) -> Callable[[], Any]:
        """A call of torch's on this group that returns at once."""
        return partial(call, *given, **named, group=self.group, async_op=True)

    def close(self) -> None:
        """End a group of its own, unless something is under way in it, which it would wait for.

        Nor on CUDA, where that is a collective and a rank that stops may be alone: such a group ends with the
        default one.
        """
        if self._own and self.device.type != "cuda" and self.ledger.idle:
            dist.destroy_process_group(self.group)
        self._own = False
        if self.link is not None:
            self.link.close()
        del self.group

    def _run(
        self,
        operation: str,
        handed_in: Tensor,
        result: Tensor,
        begin: Callable[[], dist.Work | Future[Any] | None],
        finish: Callable[[], object] | None = None,
        peer: int = EVERYONE,
    ) -> Future[Tensor]:
        entry = self.ledger.begin(operation, nbytes(handed_in), self.world_size, peer)
        ledger, unfinished = self.ledger, list[dist.Work]()
        lacks_future = operation in ("send", "receive") or (operation == "reduce_scatter" and finish is None)

        def moved() -> Future[Any]:
            with named_range(operation, self.device):
                work = begin()
            assert work is not None, "this rank is in the group"
            if not isinstance(work, dist.Work):
                return work
            if not self._gloo:
                unfinished.append(work)
            return _waited_for(work) if lacks_future and self._gloo else work.get_future()

        def complete(done: Future[object]) -> Tensor:
            done.value()
            if finish is not None:
                finish()
            ledger.end(entry)
            return result

        if self.link is None:
            done = moved().then(complete)
            return _WithWork(unfinished[0], done) if unfinished else done
        # Of a broadcast all passes the source's link, whatever ranks send of it on average.
        size = entry.bytes_in if operation in ("receive", "broadcast") else entry.bytes_wire
        if self._gloo and operation == "reduce_scatter" and finish is None:
            size = SENT["all_reduce"](entry.bytes_in, self.world_size)  # as gloo does it
        return self.link.carry(operation, size, moved).then(complete)

    def _movable(self, tensor: Tensor) -> Tensor:
        if not self._gloo or tensor.dtype in _SENT_AS_THEY_ARE:
            return tensor
        return tensor.view(-1).view(torch.uint8)


def nbytes(tensor: Tensor) -> int:
    """Size of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _backend(group: dist.ProcessGroup, device: torch.device) -> str:
    pairs = (pair.split(":") for pair in distributed_c10d.get_backend_config(group).split(","))
    return dict(pairs)[device.type]


def _waited_for(work: dist.Work) -> Future[object]:
    """The future of an operation that has none."""
    future: Future[object] = Future()

    def wait() -> None:
        try:
            work.wait()
        except RuntimeError as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=wait, daemon=True, name="dynbench-wait").start()
    return future


class _WithWork(Future[Tensor]):
    """The future of a collective whose back end keeps what it reads and writes until its work is waited for, as NCCL.

    Torch's own future lets go of nothing: there that memory stays taken until a thread of NCCL's looks after it and the
    group's next collective comes. `wait` stands where the result is used, so that what is between overlaps.
    """

    def __init__(self, work: dist.Work, done: Future[Tensor]) -> None:
        super().__init__()
        self._work, self._done = work, done

    def wait(self) -> Tensor:
        """Order the current stream behind the collective, and let go of its memory."""
        self._work.wait()
        return self._done.wait()

    def then(self, callback: Callable[[Future[Tensor]], Any]) -> Future[Any]:
        """Of torch's future, which C++ knows; who takes it waits for this one, too."""
        return self._done.then(callback)
