"""The kernel's count of what a process has written to its TCP connections."""

from __future__ import annotations

import socket
import sys

import pytest

from dynbench.engine.rank.row_builder import SentBytes, can_count

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def test_what_is_sent_over_connections_is_counted_also_while_nobody_reads() -> None:
    assert can_count()
    sent = SentBytes(counts=True)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        there, _ = server.accept()
        with there:
            client.sendall(b"x" * 50_000)
            assert sent.take() == 50_000
            client.sendall(b"x" * 7)
            there.sendall(b"x" * 100)
            assert sent.take() == 107
            client.sendall(b"x" * 9)
            sent.restart()
            assert sent.take() == 0


def test_other_sockets_and_files_are_not() -> None:
    sent = SentBytes(counts=True)
    one, other = socket.socketpair()
    with one, other, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        one.sendall(b"x" * 1000)
        datagrams.sendto(b"x" * 100, ("127.0.0.1", 9))
        assert sent.take() == 0
    assert SentBytes(counts=False).take() is None
