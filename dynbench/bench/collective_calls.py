"""One size of one collective, as each rank runs it, with the result that is known beforehand."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from dynbench.bench.base import ELEMENT_BYTES, Case, Columns, Measured, NotMeasured
from dynbench.bench.measuring import free_bytes
from dynbench.clock import Clock, clock_for
from dynbench.engine.rank.exchange import all_floats, max_over_ranks, sum_over_ranks
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.row_builder import SentBytes, can_count
from dynbench.plugins.benchmarks import CollectivesOptions
from dynbench.runs.provenance import usable_cores
from dynbench.units import format_bytes

KINDS = 5
"""Different values that a rank contributes."""
PERIOD = 127
"""Elements after which they come again: a prime above the number of ranks, so that ranks and parts all differ."""
ROWS = 8192
"""Periods that are compared at once."""
STALE = -1.0
"""What a result holds before the collective writes it."""
QUEUED = ("nccl",)
"""Back ends whose calls return at once, and wait for each other on the GPU."""
SAME_ON_ALL = ("all_reduce", "all_gather", "broadcast")
"""Operations that leave the same on every rank."""
_UNSUPPORTED = re.compile(r"support|invalid|not implemented|no backend|unsupported", re.IGNORECASE)

# torch 2.15 has new names for these two, and warns of the old ones.
_all_gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
_reduce_scatter = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"

Pattern = Tensor
"""One period of what stands in a buffer, shape [PERIOD]."""


def contribution(rank: int, first: int = 0) -> Pattern:
    """What a rank puts in from element `first` on: small whole numbers that depend on position and rank."""
    positions = torch.arange(first, first + PERIOD)
    return (positions * (rank + 1) + rank) % PERIOD % KINDS


def known_sum(ranks: int, first: int = 0) -> Pattern:
    """Their sum over ranks; exact in every type for up to `MOST_RANKS` of them."""
    return torch.stack([contribution(rank, first) for rank in range(ranks)]).sum(0)


@dataclass(frozen=True)
class Prepared:
    """A collective with its tensors.

    Args:
        start: makes the tensors as they are before every call.
        call: does it, once.
        result: what it writes, shape [n].
        known: what the equal parts of the result hold afterwards.
    """

    start: Callable[[], object]
    call: Callable[[], object]
    result: Tensor
    known: Sequence[Pattern]


def prepare(operation: str, count: int, dtype: torch.dtype, group: dist.ProcessGroup, device: torch.device) -> Prepared:
    """The tensors of an operation on this rank.

    Args:
        operation: as in `collectives.BUS_FACTORS`.
        count: elements of the larger of its buffers, which all ranks can divide where it is divided.
        dtype: of the elements.
        group: the ranks.
        device: where the buffers are.
    """
    rank, ranks = group.rank(), group.size()
    part, mine, others = count // ranks, contribution(rank), range(ranks)
    kinds: dict[str, tuple[int, int, list[Pattern], Callable[..., object]]] = {
        "all_reduce": (0, count, [known_sum(ranks)], lambda result, _: dist.all_reduce(result, group=group)),
        "broadcast": (
            0, count, [contribution(0)], lambda result, _: dist.broadcast(result, group=group, group_src=0)
        ),
        "send_recv": (count, count, [contribution((rank - 1) % ranks)], partial(_pass_on, group)),
        "reduce_scatter": (count, part, [known_sum(ranks, rank * part)], partial(_of_two, _reduce_scatter, group)),
        "all_gather": (part, count, [contribution(each) for each in others], partial(_of_two, _all_gather, group)),
        "all_to_all": (
            count, count, [contribution(each, rank * part) for each in others],
            partial(_of_two, "all_to_all_single", group),
        ),
    }  # fmt: skip
    handed, elements, known, call = kinds[operation]
    result = torch.full((elements,), STALE, dtype=dtype, device=device)
    given = fill(torch.full((handed,), STALE, dtype=dtype, device=device), mine)
    in_place = operation == "all_reduce" or (operation == "broadcast" and rank == 0)
    start = partial(fill, result, mine) if in_place else partial(result.fill_, STALE)
    return Prepared(start, lambda: call(result, given), result, known)


def _of_two(name: str, group: dist.ProcessGroup, result: Tensor, given: Tensor) -> None:
    getattr(dist, name)(result, given, group=group)


def _pass_on(group: dist.ProcessGroup, received: Tensor, sent: Tensor) -> None:
    """Send to the next rank and receive from the one before."""
    rank, ranks = group.rank(), group.size()
    calls = [
        dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % ranks),
        dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


def fill(buffer: Tensor, pattern: Pattern) -> Tensor:
    """Write a pattern over and over into a buffer, shape [n]."""
    values = pattern.to(buffer.device, buffer.dtype)
    whole = buffer[: len(buffer) // PERIOD * PERIOD]
    whole.view(-1, PERIOD).copy_(values)
    buffer[len(whole) :].copy_(values[: len(buffer) - len(whole)])
    return buffer


def compare(result: Tensor, known: Sequence[Pattern]) -> tuple[int, float]:
    """How many elements differ from what is known, and by how much at most."""
    wrong, furthest = 0, 0.0
    for part, pattern in zip(result.chunk(len(known)), known, strict=True):
        values = pattern.to(part.device, part.dtype)
        whole = len(part) // PERIOD * PERIOD
        for rows in (*torch.split(part[:whole].view(-1, PERIOD), ROWS), part[None, whole:]):
            expected = values[: rows.shape[1]].expand_as(rows)
            different = int((rows != expected).sum())
            if different:
                wrong += different
                furthest = max(furthest, float((rows.double() - expected.double()).abs().max()))
    return wrong, furthest


def measure_collective(case: Case, options: CollectivesOptions, context: RankContext, device: torch.device) -> Measured:
    """Time the iterations, begun at one time, and compare the last result with the known one.

    Args:
        case: its operation, shape, type and back end.
        options: how often, and for how long.
        context: this rank; every rank calls this.
        device: where the tensors are.

    Raises:
        NotMeasured: the back end has no such operation or type, or memory for it is not there.
    """
    operation, backend = str(case.columns["operation"]), str(case.columns["backend"])
    dtype, (count,), ranks = getattr(torch, case.dtype), case.shape, context.world_size
    group = _group(backend)
    _try(operation, dtype, group, device)
    _check_room(operation, count * ELEMENT_BYTES[case.dtype], ranks, device)
    prepared, clock = prepare(operation, count, dtype, group, device), clock_for(device)
    sent = SentBytes(backend not in QUEUED and can_count())
    ms = _queued(prepared, options, clock, group) if backend in QUEUED else _timed(prepared, options, clock, sent)
    sent_bytes = sent.take()
    wrong, furthest = compare(prepared.result, prepared.known)
    (all_wrong,) = sum_over_ranks([wrong])
    most = torch.tensor([furthest, -1.0 if sent_bytes is None else sent_bytes / len(ms)], dtype=torch.float64)
    max_over_ranks(most)
    columns: Columns = {"#wrong": int(all_wrong), "shared": _shared(context, device)}
    if most[1] >= 0:
        columns["sent_bytes"] = round(float(most[1]))
    if operation in SAME_ON_ALL:
        columns["unequal"] = _unequal(operation, prepared)
    return Measured(ms, columns, float(most[0]))


def _group(backend: str) -> dist.ProcessGroup:
    """The ranks; every rank calls this."""
    world = dist.group.WORLD
    assert world is not None, "within a process group"
    return _nccl() if backend == "nccl" else world


@cache
def _nccl() -> dist.ProcessGroup:
    """The ranks over connections of NCCL's own, made once per launch."""
    group = dist.new_group(backend="nccl")
    assert isinstance(group, dist.ProcessGroup), "this rank is one of them"
    return group


def _try(operation: str, dtype: torch.dtype, group: dist.ProcessGroup, device: torch.device) -> None:
    """Do it once with few elements: what a back end does not have, every rank learns alike.

    Raises:
        NotMeasured: in torch's words.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    tried = prepare(operation, group.size(), dtype, group, device)
    tried.start()
    try:
        tried.call()
    except (RuntimeError, ValueError) as error:  # back ends refuse by either
        if isinstance(error, dist.DistNetworkError) or not _UNSUPPORTED.search(str(error)):
            raise
        raise NotMeasured(f"torch {torch.__version__}: {str(error).splitlines()[0]}") from error


def _check_room(operation: str, nbytes: int, ranks: int, device: torch.device) -> None:
    """Raises NotMeasured on all ranks where the buffers and a copy of the back end's do not fit."""
    copies = {"all_reduce": 2.0, "broadcast": 1.0, "all_to_all": 2.0, "send_recv": 2.0}.get(operation, 2 + 1 / ranks)
    here = ranks if device.type == "cpu" else -(-ranks // torch.cuda.device_count())
    needed, free = copies * nbytes * here, -float(free_bytes(device))
    least = torch.tensor([free], dtype=torch.float64)
    max_over_ranks(least)
    if needed > -float(least):
        by_hand = f"{here} x {copies:.3g} x {format_bytes(nbytes)} = {format_bytes(round(needed))}"
        raise NotMeasured(f"{by_hand} for buffers, and {format_bytes(round(-float(least)))} are free", "oom")


def _timed(prepared: Prepared, options: CollectivesOptions, clock: Clock, sent: SentBytes) -> NDArray[np.float64]:
    """Milliseconds of every iteration on its slowest rank, shape [n]; bytes are counted from the first of them on."""
    began, times = time.monotonic(), []
    for index in range(options.warmup + options.iterations):
        if index == options.warmup:
            sent.take()
        prepared.start()
        clock.synchronise()
        late = torch.tensor([float(time.monotonic() - began > options.limit_s)])
        max_over_ranks(late)  # also what makes all ranks begin together
        start = clock.mark()
        prepared.call()
        end = clock.mark()
        clock.synchronise()
        times.append(clock.elapsed_ms(start, end))
        if late and index >= options.warmup:
            break  # after the call: what `start` leaves in the buffers is no result
    slowest = torch.tensor(times, dtype=torch.float64)
    max_over_ranks(slowest)
    return slowest[options.warmup :].numpy()


def _queued(
    prepared: Prepared, options: CollectivesOptions, clock: Clock, group: dist.ProcessGroup
) -> NDArray[np.float64]:
    """Likewise, each queued behind the one before, as nccl-tests has it, as many as there is time for by the warm-up.

    The first starts behind a tiny collective, which ends on all ranks at one time: neither a launch nor a late rank is
    in the times. What has been sent again and again is no result, so that another call follows.
    """
    began = time.monotonic()

    def in_a_row(iterations: int) -> Tensor:
        prepared.start()
        clock.synchronise()
        dist.all_reduce(prepared.result.new_zeros(1), group=group)
        marks = [clock.mark()]
        for _ in range(iterations):
            prepared.call()
            marks.append(clock.mark())
        clock.synchronise()
        slowest = torch.tensor([clock.elapsed_ms(*each) for each in pairwise(marks)], dtype=torch.float64)
        max_over_ranks(slowest)
        return slowest

    each_ms = float(in_a_row(max(1, options.warmup))[-1])
    took_s = torch.tensor([time.monotonic() - began], dtype=torch.float64)
    max_over_ranks(took_s)
    fitting = int(1e3 * (options.limit_s - float(took_s)) / each_ms) if each_ms > 0 else options.iterations
    found = in_a_row(max(1, min(options.iterations, fitting)))
    prepared.start()
    prepared.call()
    clock.synchronise()
    return found.numpy()


def _shared(context: RankContext, device: torch.device) -> str:
    """What several processes take turns on, which times each other's turns; empty for nothing."""
    if context.world_size > usable_cores():
        return f"{context.world_size} processes on {usable_cores()} cores"
    gpus = torch.cuda.device_count()
    return (
        f"{context.world_size} processes on {gpus} GPUs" if device.type == "cuda" and context.world_size > gpus else ""
    )


def _unequal(operation: str, prepared: Prepared) -> int:
    """Ranks whose result is not that of rank 0 bit by bit; sums are made of values that have to be rounded."""
    if operation == "all_reduce":
        prepared.start()
        prepared.result.div_(7)
        prepared.call()
    data = prepared.result.view(torch.uint8).cpu().numpy()
    sums = all_floats(float(zlib.crc32(data.data)))
    return int((sums != sums[0]).sum())
