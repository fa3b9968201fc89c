"""What the two sides of a parameter server say that they took, on a clock that only messages move."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from set_clock import SetClock
from torch import Tensor, nn
from torch.futures import Future

from dynbench.config.layers import load_config
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.plugins import STRATEGIES
from dynbench.sync import parameter_server
from dynbench.wire.base import NullWire

CPU = torch.device("cpu")
WORKERS, TENSORS = 2, 4
LATE_MS, SMALL_MS, LARGE_MS = 100.0, 1.0, 10.0
SERVERS = [name for name, entry in STRATEGIES.items() if entry.servers]


class Wire(NullWire):
    """The other side is late for the first message of an exchange; a message takes as long as it is large."""

    def __init__(self, rank: int, clock: SetClock) -> None:
        super().__init__(rank, 1 + WORKERS)
        self.clock, self.late = clock, True

    def _passes(self, tensor: Tensor) -> None:
        self.clock.now += LATE_MS * self.late + (LARGE_MS if tensor.numel() > 8 else SMALL_MS)
        self.late = False

    def send(self, tensor: Tensor, to: int) -> Future[Tensor]:
        self._passes(tensor)
        return super().send(tensor, to)

    def receive(self, tensor: Tensor, source: int) -> Future[Tensor]:
        self._passes(tensor)
        return super().receive(tensor.fill_(1.0), source)


@pytest.fixture
def clock(alone: None, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    found = SetClock()
    monkeypatch.setattr(parameter_server, "clock_for", lambda device: found)
    return found


def row_of_a_step(name: str, rank: int, clock: SetClock, *, buffers: bool = False) -> dict[str, object]:
    """The row of the first step; with an evaluation before it where buffers are pushed."""
    wire = Wire(rank, clock)
    with closing(STRATEGIES[name].load()(load_config(None, [f"sync.name={name}"]).sync, wire)) as strategy:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8) if buffers else nn.Linear(8, 1))
        module = strategy.wrap(model, CPU)
        optimizer = strategy.build_optimizer(module.parameters(), lambda given: torch.optim.SGD(given, lr=0.1))
        if buffers:
            with strategy.evaluating():
                pass
        wire.late = True
        if strategy.ranks.serves(rank):
            pull = strategy._pull

            def pulled(tensors: list[Tensor], source: int) -> list[Tensor]:
                """Each worker is late."""
                wire.late = True
                return pull(tensors, source)

            strategy._pull = pulled
            strategy.serve()
        else:
            module(torch.ones(2, 8)).sum().backward()
            strategy.finish()
        wire.late = True
        strategy.step(optimizer, Precision("fp32", CPU))
        return dict(strategy.row())


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_side_says_its_own_and_what_an_evaluation_sends_is_in_no_step(name: str, rank: int, clock: SetClock) -> None:
    row = row_of_a_step(name, rank, clock)
    assert set(row) == {column.name for column in STRATEGIES[name].load().columns}
    mine = {"push_ms", "pull_ms"} if rank else {"receive_ms", "average_ms", "send_ms"}
    assert {column for column, value in row.items() if value is not None} - {"messages", "peer_wait_ms"} == mine
    row = row_of_a_step(name, rank, clock, buffers=True)
    assert row["messages"] == (1 if rank else WORKERS) * (1 + 2 * TENSORS if name == "ps" else 2)
    assert (row["peer_wait_ms"] or 0.0) < (WORKERS + 2) * LATE_MS


def test_waiting_is_told_from_transfer_where_a_small_message_opens(clock: SetClock) -> None:
    """Of four tensors one is large; which of them there are opens a push, the smallest a pull."""
    transfer = 3 * SMALL_MS + LARGE_MS
    worker, server = (row_of_a_step("ps", rank, clock) for rank in (1, 0))
    assert worker["push_ms"] == LATE_MS + SMALL_MS + transfer
    assert worker["pull_ms"] == LATE_MS + transfer
    assert worker["peer_wait_ms"] == 2 * (LATE_MS + SMALL_MS)
    assert server["receive_ms"] == WORKERS * (LATE_MS + SMALL_MS + transfer)
    assert server["send_ms"] == LATE_MS + WORKERS * transfer
    assert server["peer_wait_ms"] == (WORKERS + 1) * LATE_MS + 2 * WORKERS * SMALL_MS


def test_one_message_does_not_tell(clock: SetClock) -> None:
    worker, server = (row_of_a_step("ps_flat", rank, clock) for rank in (1, 0))
    assert worker["peer_wait_ms"] is server["peer_wait_ms"] is None
    assert worker["push_ms"] == LATE_MS + LARGE_MS
    assert server["receive_ms"] == WORKERS * (LATE_MS + LARGE_MS)
