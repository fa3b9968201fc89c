"""What a collective does: small tensors of a few processes before and after one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.engine.rank.local_ranks import answers_of_ranks


@dataclass(frozen=True)
class Operation:
    """A collective of torch.distributed.

    Args:
        call: how it is written.
        meaning: what becomes of the tensors.
        run: does it with a rank's tensor, shape [G]; what that rank has afterwards, None where it has nothing new.
    """

    call: str
    meaning: str
    run: Callable[[Tensor], Tensor | None]


def _all_reduce(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


def _reduce(tensor: Tensor) -> Tensor | None:
    dist.reduce(tensor, dst=0)
    return tensor if dist.get_rank() == 0 else None  # what stands in it elsewhere is not defined


def _broadcast(tensor: Tensor) -> Tensor:
    dist.broadcast(tensor, src=0)
    return tensor


def _scatter(tensor: Tensor) -> Tensor:
    mine = tensor.new_empty(1)
    dist.scatter(mine, list(torch.split(tensor, 1)) if dist.get_rank() == 0 else None, src=0)
    return mine


def _gather(tensor: Tensor) -> Tensor | None:
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.gather(tensor, found if dist.get_rank() == 0 else None, dst=0)
    return torch.cat(found) if dist.get_rank() == 0 else None


def _all_gather(tensor: Tensor) -> Tensor:
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return torch.cat(found)


def _reduce_scatter(tensor: Tensor) -> Tensor:
    mine = tensor.new_empty(1)
    dist.reduce_scatter(mine, list(torch.split(tensor, 1)))
    return mine


def _all_to_all(tensor: Tensor) -> Tensor:
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor)
    return received


def _send(tensor: Tensor) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    work = dist.isend(tensor, (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    assert work is not None, "this rank is in the group"
    work.wait()
    return received


OPERATIONS = {
    "all_reduce": Operation("dist.all_reduce(tensor)", "every rank ends with the sum over ranks", _all_reduce),
    "broadcast": Operation("dist.broadcast(tensor, src=0)", "every rank ends with rank 0's tensor", _broadcast),
    "reduce": Operation("dist.reduce(tensor, dst=0)", "rank 0 ends with the sum over ranks", _reduce),
    "scatter": Operation("dist.scatter(mine, parts, src=0)", "part i of rank 0's tensor goes to rank i", _scatter),
    "gather": Operation("dist.gather(tensor, parts, dst=0)", "rank 0 ends with all tensors, in order of rank", _gather),
    "all_gather": Operation(
        "dist.all_gather(parts, tensor)", "every rank ends with all tensors, in order of rank", _all_gather
    ),
    "reduce_scatter": Operation(
        "dist.reduce_scatter(mine, parts)", "rank i ends with part i of the sum over ranks", _reduce_scatter
    ),
    "all_to_all": Operation(
        "dist.all_to_all_single(received, tensor)", "part i of rank j's tensor becomes part j of rank i's", _all_to_all
    ),
    "send_recv": Operation(
        "dist.isend(tensor, next); dist.recv(received, previous)",
        "every rank ends with the tensor of the rank before it",
        _send,
    ),
}


@dataclass(frozen=True)
class Seen:
    """A rank's tensor around a collective, as `sync demo --json` lists it."""

    operation: str
    """A key of `OPERATIONS`."""
    rank: int
    """Whose tensor."""
    before: list[int]
    """Its elements."""
    after: list[int] | None
    """What the rank has afterwards; null where the operation leaves it nothing."""


def demonstrate(names: Sequence[str], ranks: int) -> Generator[Seen, None, None]:
    """Run operations on so many processes of this machine, one after the other.

    Raises:
        WorkerFailed: a rank ended with an error.
    """
    hint = "Look at one operation at a time: dynbench sync demo --op all_reduce."
    yield from answers_of_ranks(shown_on_rank, (list(names),), ranks, "sync demo", hint)


def shown_on_rank(names: list[str]) -> Iterator[Seen]:
    """Each operation on one rank of the default group; a collective."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name in names:
        before = torch.arange(1, ranks + 1) + 10 * rank
        after = OPERATIONS[name].run(before.clone())
        yield Seen(name, rank, before.tolist(), None if after is None else after.tolist())
