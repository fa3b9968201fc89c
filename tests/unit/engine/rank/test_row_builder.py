"""What a rank counts as sent, and what it writes of it."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from dynbench.engine.rank.row_builder import SentBytes, can_count, extra_values
from dynbench.engine.rank.timers import Synchronised
from dynbench.wire.traffic import Traffic


@pytest.mark.parametrize(("error", "bytes_sent"), [(None, 51), (0.0, None), (0.3, None)])
def test_what_measures_the_error_of_compression_is_not_held_against_what_was_counted(error, bytes_sent):
    wire = SimpleNamespace(row=lambda: {"grad_rel_error": error})
    replica = SimpleNamespace(strategy=SimpleNamespace(wire=wire, row=dict), row=dict, counted=lambda _: {})
    found = extra_values(replica, SimpleNamespace(turn=1), [], 0, Traffic(0), Synchronised(), 51)
    assert (found["bytes_sent"], found["grad_rel_error"]) == (bytes_sent, error)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def test_what_is_sent_over_connections_is_counted_also_while_nobody_reads():
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
            sent.take()
            assert sent.take() == 0
            client.sendall(b"x" * 1000)
            client.close()
            assert sent.take() is None, "part of it is gone with the connection"
            assert sent.take() == 0


def test_other_sockets_and_files_are_not():
    sent = SentBytes(counts=True)
    one, other = socket.socketpair()
    with one, other, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        one.sendall(b"x" * 1000)
        datagrams.sendto(b"x" * 100, ("127.0.0.1", 9))
        assert sent.take() == 0
    assert SentBytes(counts=False).take() is None
