"""What warm ranks do to have bytes counted and clocks compared."""

from __future__ import annotations

import time
from contextlib import closing

import torch
import torch.distributed as dist
from wire_jobs import CPU, MINUTE

from dynbench.engine.rank.exchange import compare_clocks
from dynbench.engine.rank.row_builder import SentBytes
from dynbench.wire.channel import Channel

ELEMENTS = 3_000_000


def counted_over_calculated(rank: int, operation: str, past_the_wire: bool) -> float:
    """Bytes that the kernel counts over those of the formula; the planted fault sends as much past the channel."""
    tensor = torch.ones(ELEMENTS)
    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        channel.all_reduce(torch.ones(1)).wait()
        sent = SentBytes(counts=True)
        channel.ledger.take()
        if operation == "all_gather":
            channel.all_gather(torch.empty(2 * ELEMENTS), tensor).wait()
        elif operation == "reduce_scatter":
            channel.reduce_scatter(torch.empty(ELEMENTS // 2), tensor).wait()
        else:
            channel.all_reduce(tensor).wait()
        if past_the_wire:
            dist.all_reduce(tensor)
        dist.barrier()
        counted = sent.take()
        dist.barrier()  # a rank that closes its group closes the other's connections, with what they counted
        assert counted is not None
        return counted / channel.ledger.take().bytes_wire


def header_bytes(rank: int, operation: str, elements: int) -> float:
    """Bytes of a call that the kernel counts beyond the formula's, per other rank; mean of many."""
    calls, others = 100, dist.get_world_size() - 1
    tensor, full = torch.ones(elements), torch.ones(elements * (others + 1))
    with closing(Channel.of_its_own(CPU, MINUTE)) as channel:
        begin = {
            "all_reduce": lambda: channel.all_reduce(tensor),
            "all_gather": lambda: channel.all_gather(full, tensor),
            "reduce_scatter": lambda: channel.reduce_scatter(tensor, full),
            "all_to_all": lambda: channel.all_to_all(full.clone(), full),
            "send": lambda: channel.send(tensor, rank ^ 1),
        }[operation]

        def call() -> None:
            received = channel.receive(tensor.clone(), rank ^ 1) if operation == "send" else None
            begin().wait()
            if received is not None:
                received.wait()

        call()
        dist.barrier()
        sent = SentBytes(counts=True)
        channel.ledger.take()
        for _ in range(calls):
            call()
        dist.barrier()
        counted = sent.take()
        dist.barrier()  # as above
        assert counted is not None
        return (counted - channel.ledger.take().bytes_wire) / calls / others


def clocks_apart(rank: int, ahead_s: float) -> dict[str, object]:
    """What rank 0 finds where the clock of rank 1 is ahead, and goes by another name."""
    found = compare_clocks(lambda: time.perf_counter_ns() + round(ahead_s * 1e9) * rank, f"clock {rank}")
    return dict(found)


def clocks_as_they_are(rank: int) -> dict[str, object]:
    """What rank 0 finds of this machine's."""
    return dict(compare_clocks())
