"""A limit on this process's memory that the kernel enforces: allocations beyond it fail, and the process lives on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def resident_bytes() -> int:
    """Resident memory of this process, interpreter and libraries included: what a training run reports peaks of."""
    return _status("VmRSS:")


def limit_process(limit_bytes: int) -> None:
    """Let the kernel refuse this process memory that would make more than the limit resident.

    `RLIMIT_DATA` counts private writable mappings since Linux 4.7 (getrlimit(2)), so that the allocator fails at once
    and the process survives, where a control group would have it killed. It knows neither the pages of libraries nor
    which of the mappings are in use, so what is allowed is what is mapped now and what is left below the limit; to be
    called again before every trial. What is mapped and becomes resident later is not refused: a peak has the last word.
    """
    allowed = _status("VmData:") + max(0, limit_bytes - resident_bytes())
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed if most == resource.RLIM_INFINITY else min(allowed, most), most))


@contextmanager
def limited(limit_bytes: int | None) -> Iterator[None]:
    """The same for a while; None for no limit."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes is not None:
        limit_process(limit_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key.rstrip(':')}")
