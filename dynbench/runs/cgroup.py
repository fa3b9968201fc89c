"""What the control groups of this process allow, cgroup v1 and v2: a container has less than its machine.

A group's limits hold together with those of all groups above it. Paths are those of the kernel's documentation,
admin-guide/cgroup-v1 and cgroup-v2. Inside a container without a cgroup namespace, a group's path is the host's and
does not exist below the mount; the mount itself is then the container's group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
UNLIMITED_BYTES = 2**60
"""v1 says "no limit" by a number near 2**63."""


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """The least memory limit over this process's groups, bytes; None where there is none.

    Args:
        root: where `/proc` and `/sys` are.
    """
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_available_bytes(root: Path = ROOT) -> int | None:
    """What may still be taken within the limits, bytes; None where there is no limit.

    The page cache that the kernel would give back first (inactive files) counts as free, as it does in `MemAvailable`.
    """
    return min((max(0, limit - used) for limit, used in _memory(root)), default=None)


def memory_kills(root: Path = ROOT) -> int:
    """Processes that the kernel has killed for memory since it began, of any group; 0 where it does not tell."""
    lines = _text(root / "proc/vmstat").splitlines()
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == ["oom_kill"]), 0)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of CPU time that this process's groups allow; None when there is no limit."""
    quotas = [limit / period for limit, period in (*_cpu_v2(root), *_cpu_v1(root)) if limit > 0 and period > 0]
    return min(quotas, default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of every group that has a limit."""
    for group in _groups(root, ""):
        limits = [limit for name in ("memory.max", "memory.high") if (limit := _number(group / name)) is not None]
        if limits:
            yield min(limits), _used(group, "memory.current", "inactive_file")
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.limit_in_bytes")
        if limit is not None and limit < UNLIMITED_BYTES:
            yield limit, _used(group, "memory.usage_in_bytes", "total_inactive_file")


def _used(group: Path, name: str, cache: str) -> int:
    lines = _text(group / "memory.stat").splitlines()
    inactive = next((int(line.split()[1]) for line in lines if line.split()[:1] == [cache]), 0)
    return max(0, (_number(group / name) or 0) - inactive)


def _cpu_v2(root: Path) -> Iterator[tuple[int, int]]:
    for group in _groups(root, ""):
        limit, _, period = _text(group / "cpu.max").strip().partition(" ")
        if limit.isdecimal() and period.isdecimal():
            yield int(limit), int(period)


def _cpu_v1(root: Path) -> Iterator[tuple[int, int]]:
    for group in _groups(root, "cpu"):
        limit, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if limit is not None and period is not None:
            yield limit, period


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group under a v1 controller and of all groups above it; v2 for the empty name."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controller not in controllers.split(","):
            continue
        mounts = root / "sys/fs/cgroup"
        mount = next((mounts / name for name in _mount_names(controllers) if (mounts / name).is_dir()), mounts)
        inner = PurePosixPath(path.lstrip("/"))
        for part in [PurePosixPath()] if ".." in inner.parts else [inner, *inner.parents]:
            yield mount / part


def _mount_names(controllers: str) -> tuple[str, ...]:
    return (controllers, *controllers.split(",")) if controllers else ("unified",)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _text(path: Path) -> str:
    """The file's text; empty where there is no such file or it may not be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
