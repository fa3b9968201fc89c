"""How far the ranks' monotonic clocks are apart, so that moments of several ranks can be held against each other.

Processes of one boot of one system read one clock. Between others the difference is measured as NTP does (Mills,
RFC 5905): rank 0 asks, the other answers with its time, and of several exchanges the quickest is taken, which is wrong
by at most half the time that it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from dynbench.engine.rank.exchange import gather_objects
from dynbench.runs.run_record import host_name

EXCHANGES = 20
"""Of which the quickest counts."""


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
    rank, told, quickest = dist.get_rank(), torch.zeros(1, dtype=torch.int64), (0, 2**62)
    for _ in range(EXCHANGES):
        if rank == 0:
            asked = now()
            dist.send(told, other)
            dist.recv(told, other)
            took = now() - asked
            if took // 2 < quickest[1]:
                quickest = int(told) - asked - took // 2, took // 2
        elif rank == other:
            dist.recv(told, 0)
            told[0] = now()
            dist.send(told, 0)
    return quickest
