"""Bytes that this process has sent over its TCP connections, as the kernel counts them, whoever in it sent them.

An interface counts what every process of the machine sends, with headers; a connection's own count holds this rank's
payload alone, on any interface and between any machines.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_NOT_YET_SENT = struct.Struct("=144xI")
_SENT = struct.Struct("=200xQQ")
"""Of Linux's `struct tcp_info`: sent, and sent again, since Linux 4.19."""


def can_count() -> bool:
    """Whether the system tells."""
    return sys.platform == "linux" and _DESCRIPTORS.is_dir() and _of_a_new_connection() is not None


class SentBytes:
    """Counts from one moment to the next what went out in between.

    Args:
        counts: whether to count at all; not where nothing tells, and not on GPUs, whose collectives go elsewhere.
    """

    def __init__(self, counts: bool) -> None:
        self._counts = counts
        self._before = _by_connection() if counts else {}

    def restart(self) -> None:
        """What was sent up to now is left out."""
        if self._counts:
            self._before = _by_connection()

    def take(self) -> int | None:
        """Bytes since the last call; None where they are not counted. What a connection sent that is gone is lost."""
        if not self._counts:
            return None
        now = _by_connection()
        sent = sum(written - self._before.get(connection, 0) for connection, written in now.items())
        self._before = now
        return sent


def _by_connection() -> dict[int, int]:
    """Bytes handed to each open TCP connection, by its inode."""
    found = {}
    for entry in _DESCRIPTORS.iterdir():
        with suppress(OSError):
            status = os.fstat(int(entry.name))
            if stat.S_ISSOCK(status.st_mode) and (written := _written(int(entry.name))) is not None:
                found[status.st_ino] = written
    return found


def _written(descriptor: int) -> int | None:
    """What was given to a connection, sent or not yet; None for other sockets, and where the kernel does not say."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return None
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
        if len(facts) >= _SENT.size:
            sent, again = _SENT.unpack_from(facts)
            (waiting,) = _NOT_YET_SENT.unpack_from(facts)
            return int(sent - again + waiting)
    return None


def _of_a_new_connection() -> int | None:
    with socket.socket() as new:
        return _written(new.fileno())
