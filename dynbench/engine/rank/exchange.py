"""What ranks exchange beside gradients: facts gathered and agreed on, plans, and the offsets of their clocks.

Processes of one boot of one system read one monotonic clock. Between others the difference is measured as NTP does
(Mills, RFC 5905): rank 0 sends, the other replies with its time, and of several round trips the quickest is taken,
which is wrong by at most half its duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.config.ranks import Ranks
from dynbench.config.schema import NOT_IDENTITY, Config, flatten
from dynbench.engine.planning import Planned, PlanSource
from dynbench.errors import ConfigError, DynbenchError
from dynbench.plugins.outside import VARIABLE, digests
from dynbench.runs.run import host_name
from dynbench.schedule import capacity
from dynbench.schedule.plan import Share
from dynbench.schedule.policy import Problem
from dynbench.schedule.prefix import RankStream, candidate_costs, require_room
from dynbench.schedule.prefix_counts import room_of, solve_counts

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""Stands for no time-out at all, which gloo does not know."""
_MAY_DIFFER = (*(key for key in NOT_IDENTITY if key != "train.seed"), "workload.data_path", "workload.eval_path")
"""Keys of this node alone; data are compared by fingerprint instead of path."""
EXCHANGES = 20
"""Round trips to each other clock; the quickest one counts."""


class GatheredPlans(PlanSource):
    """`prefix` with `schedule.exchange=gather`; the same plans as every rank would make by itself.

    Args:
        problem: only this rank's part of its lengths is looked at.
        rank: this worker's number.
        group: the workers; None is all ranks.
    """

    def __init__(self, problem: Problem, rank: int, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._problem = problem
        self._rank = rank
        self._stream = RankStream(problem, rank)

    def share(self, step: int) -> Planned:
        """This rank's next samples; a collective.

        Raises:
            NothingFits: the capacities cannot hold the samples at the front of the streams.
        """
        stream, problem = self._stream, self._problem
        costs = candidate_costs(problem, stream.lengths[None], [self._rank], stream.extra)[0]
        if np.isinf(costs[0]):
            raise capacity.sample_too_long(step, int(stream.ids[0]), int(stream.lengths[0]), f"rank {self._rank}")
        offers, counts = all_floats(costs, self._group), None
        if dist.get_rank(self._group) == 0:
            require_room(room_of(offers), problem.global_batch, step)
            counts = solve_counts(offers, problem.global_batch, problem.solver).counts
        counts = broadcast_integers(counts, problem.workers, self._group)
        return (stream.take(int(counts[self._rank])),), None


class GlobalBatch:
    """The step's samples over all ranks (B_t) and what they weigh (W_t), summed while the forward pass runs.

    What a rank runs again without counting it is no part of this.

    Args:
        local_batch: samples of this rank in this step.
        weight: their weight in the loss.
        workers: ranks over which gradients are averaged (G); None for all.
    """

    def __init__(self, local_batch: int, weight: float, workers: int | None = None) -> None:
        self._workers = dist.get_world_size() if workers is None else workers
        self._total = torch.tensor([local_batch, weight], dtype=torch.float64)
        self._work = dist.all_reduce(self._total, async_op=True)

    def samples(self) -> int:
        """B_t; waits for the slowest rank's plan."""
        return int(self._waited()[0])

    def scale(self) -> float:
        """G / W_t, which makes of a rank's summed loss its part of the step's mean: strategies average over workers.

        0 where the step's samples weigh nothing.
        """
        weight = float(self._waited()[1])
        return self._workers / weight if weight else 0.0

    def check(self, expected: int, step: int) -> None:
        """Refuse a step in which the ranks' plans do not make up the global batch.

        Raises:
            DynbenchError: they do not.
        """
        if self.samples() != expected:
            raise DynbenchError(
                f"step {step}: the ranks planned {self.samples()} samples instead of {expected}",
                "The ranks disagree on the plan: do all of them read the same data?",
            )

    def _waited(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._total


class PlannedBatch(GlobalBatch):
    """The same of a plan that this rank knows whole: nothing is exchanged, so that no rank is waited for.

    Args:
        shares: of all workers.
        weight: the weight of a share's samples in the loss.
    """

    def __init__(self, shares: Sequence[Share], weight: Callable[[Share], float]) -> None:
        self._workers, self._work = len(shares), None
        samples = sum(len(ids) for share in shares for ids in share)
        self._total = torch.tensor([samples, sum(map(weight, shares))], dtype=torch.float64)


def wait_for_all() -> None:
    """Return when every rank has called this."""
    dist.all_reduce(torch.zeros(1))


def wait_patiently() -> None:
    """Return when every rank has called this, however long one of them takes over something else than collectives.

    A rank that dies meanwhile closes its connections, which ends the wait; one that hangs is waited for.

    Raises:
        RuntimeError: another rank is gone.
    """
    world = dist.group.WORLD
    assert world is not None, "within a process group"
    options = dist.AllreduceOptions()
    options.timeout = PATIENCE
    world.allreduce([torch.zeros(1)], options).wait()


def max_over_ranks(tensor: Tensor) -> None:
    """Element-wise maxima over ranks, in place, where the tensor is."""
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Element-wise sums over ranks."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return [float(value) for value in total]


def group_of_workers(ranks: Ranks, timeout_s: int) -> dist.ProcessGroup | None:
    """The group of those who plan; None is all ranks. Every rank calls it."""
    members = list(range(ranks.servers, ranks.world_size))
    return dist.new_group(members, timeout=timedelta(seconds=timeout_s)) if ranks.servers else None


def all_floats(values: float | np.ndarray, group: dist.ProcessGroup | None = None) -> np.ndarray:
    """The value of every rank of a group on all of them, shape [G]; of vectors of one size n, shape [G, n]."""
    mine = torch.from_numpy(np.array(values, dtype=np.float64))
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    return torch.stack(theirs).numpy()


def broadcast_integers(values: np.ndarray | None, n: int, group: dist.ProcessGroup | None = None) -> np.ndarray:
    """The `n` integers of a group's first rank on all of them."""
    shared = torch.zeros(n, dtype=torch.int64)
    if values is not None:
        shared.copy_(torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)))
    dist.broadcast(shared, group=group, group_src=0)
    return shared.numpy()


def gather_objects(value: T) -> list[T]:
    """Every rank's value, by rank, on every rank."""
    found: list[T] = [value] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def check_same_config(config: Config) -> None:
    """Refuse ranks that were started with different configurations or plug-ins from outside; a collective.

    Raises:
        ConfigError: one line per plug-in's file or key that differs from rank 0's; raised on every rank.
    """
    # First the plug-ins: where others are loaded, there are other settings.
    check_same("plug-ins", digests(), f"Name the same files in {VARIABLE} on every node.")
    known = {key: value for key, value in flatten(config).items() if key not in _MAY_DIFFER}
    settings = {key: repr(dict(sorted(it.items())) if isinstance(it, dict) else it) for key, it in known.items()}
    check_same("config", settings, "Start every node with the same settings.")


def check_same(what: str, values: Mapping[str, str], hint: str) -> None:
    """Refuse ranks of which one has other values than rank 0; a collective.

    Raises:
        ConfigError: one line per value that differs; raised on every rank.
    """
    first, *others = gather_objects(values)
    problems = [
        f"nodes disagree in {what}: {name} is {first.get(name, 'not loaded')} on rank 0, "
        f"{other.get(name, 'not loaded')} on rank {rank}"
        for rank, other in enumerate(others, 1)
        for name in dict.fromkeys((*first, *other))
        if first.get(name) != other.get(name)
    ]
    if problems:
        raise ConfigError(problems, hint)


def compare_clocks(now: Callable[[], int] = time.perf_counter_ns, name: str | None = None) -> Mapping[str, object]:
    """What to take from each rank's clock to have rank 0's; a collective.

    Args:
        now: this rank's clock, ns.
        name: of the clock: ranks that say the same read the same one; None asks the system.

    Returns:
        `offsets_ns` by rank, `uncertainty_ns` (the largest), and `source`: `same` or `measured`; on other ranks than
        the first, of no use.
    """
    names = gather_objects(clock_name() if name is None else name)
    apart = [rank for rank, other in enumerate(names) if other != names[0]]
    offsets, uncertainty = [0] * len(names), 0
    for rank in apart:
        offsets[rank], wrong = _compared(now, rank)
        uncertainty = max(uncertainty, wrong)
    return {"offsets_ns": offsets, "uncertainty_ns": uncertainty, "source": "measured" if apart else "same"}


def clock_name() -> str:
    """Equal for processes that read one clock: the boot of the system, and the namespace of its times."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return host_name()


def _compared(now: Callable[[], int], other: int) -> tuple[int, int]:
    """By how much the clock of rank `other` is ahead of rank 0's, ns, and by how much that may be wrong."""
    rank, theirs, quickest = dist.get_rank(), torch.zeros(1, dtype=torch.int64), (0, 2**62)
    for _ in range(EXCHANGES):
        if rank == 0:
            sent = now()
            dist.send(theirs, other)
            dist.recv(theirs, other)
            half = (now() - sent) // 2
            if half < quickest[1]:
                quickest = int(theirs) - sent - half, half
        elif rank == other:
            dist.recv(theirs, 0)
            theirs[0] = now()
            dist.send(theirs, 0)
    return quickest
