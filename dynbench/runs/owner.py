"""Which process a run belongs to, and whether it is still there."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def host_name() -> str:
    """This machine's name."""
    return socket.gethostname()


def start_mark(pid: int) -> str | None:
    """What tells a process from a later one with the same number: boot id and start time in clock ticks.

    None when there is no such process, or the system has no `/proc` (see proc(5), `/proc/pid/stat`, field 22).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return f"{_boot_id()}:{fields[19]}"


def is_gone(host: str, pid: int, mark: str | None) -> bool:
    """True when the process is certainly not running any more; another machine's processes are never certain."""
    if host != host_name():
        return False
    if mark is not None and Path("/proc/self/stat").exists():
        return start_mark(pid) != mark
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""
