"""Memory budgets that really bind."""

from __future__ import annotations

import resource
from pathlib import Path

from dynbench.runs.cgroup import ROOT
from dynbench.runs.provenance import memory_mb
from dynbench.units import BYTES_PER_MB

RESERVE = 0.15
"""Part of a CPU host's available memory that the default budget leaves alone."""


def default_cpu_limit_bytes(world_size: int, root: Path = ROOT) -> int:
    """An equal share, per rank, of the memory that is available now within the container's limit, less a reserve.

    Args:
        world_size: ranks (G).
        root: where `/proc` and `/sys` are.

    Raises:
        UnknownFactError: the system does not say.
    """
    available = memory_mb(root)["available"]
    assert available is not None
    return int(available * BYTES_PER_MB * (1 - RESERVE) / world_size)


def data_bytes() -> int:
    """Private writable memory of this process as the kernel counts it for `RLIMIT_DATA`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")


def limit_process(limit_bytes: int) -> None:
    """Let the kernel refuse this process any private memory beyond the limit, interpreter and libraries included.

    `RLIMIT_DATA` counts private writable mappings since Linux 4.7 (getrlimit(2)), so that the allocator fails at once
    and the process survives, where a control group would have it killed.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
