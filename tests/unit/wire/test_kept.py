"""NCCL keeps what a collective reads and writes until its work is waited for: that is where its result is used.

The back end here is made up: it keeps what it is given as NCCL does, and finishes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from dynbench.config.schema import Compress, Sync
from dynbench.plugins import COMPRESSORS, STRATEGIES
from dynbench.wire import channel as channel_module
from dynbench.wire.base import PlainWire
from dynbench.wire.channel import Channel
from dynbench.wire.queued import QueuedWire


class Nccl:
    """Collectives of one rank whose works hold their tensors."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.begun = 0

    def call(self, *tensors: object, async_op: bool = False, **_: object) -> dist.Work:
        nccl, size = self, sum(each.numel() for each in tensors if isinstance(each, Tensor))
        self.begun += 1

        class Work(dist.Work):
            def wait(self, timeout: timedelta = timedelta(0)) -> bool:
                if size in nccl.held:
                    nccl.held.remove(size)
                return True

            def get_future(self) -> Future[object]:
                future: Future[object] = Future()
                future.set_result([])
                return future

        if async_op:
            self.held.append(size)
        return Work()


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nccl]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    made = Nccl()
    monkeypatch.setattr(channel_module, "_backend", lambda group, device: "nccl")
    for name in ("all_reduce", "broadcast", "all_to_all_single"):
        monkeypatch.setattr(dist, name, made.call)

    def copied(out: Tensor, given: Tensor, async_op: bool, **_: object) -> dist.Work:
        out.copy_(given)
        return made.call(out, given, async_op=async_op)

    for name in ("_all_gather", "_reduce_scatter"):
        monkeypatch.setattr(channel_module, name, copied)
    yield made
    dist.destroy_process_group()


def test_a_collective_lets_go_where_its_result_is_used_and_not_before(nccl: Nccl) -> None:
    future = Channel().all_reduce(torch.ones(8))
    assert nccl.held == [8], "nothing has used it: what comes now overlaps"
    assert future.wait().tolist() == [1] * 8
    assert nccl.held == []


def held_after(name: str, wire: PlainWire, nccl: Nccl) -> int:
    """Elements that the back end holds after two steps of a strategy."""
    strategy = STRATEGIES.find(name).load()(Sync(name=name), wire)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    module = strategy.wrap(model, torch.device("cpu"))
    optimizer = strategy.build_optimizer(model.parameters(), torch.optim.AdamW)
    nccl.held.clear()
    for _ in range(2):
        module(torch.ones(2, 64)).sum().backward()
        strategy.finish()
        strategy.step(optimizer, Steps())
    strategy.drain()
    held = sum(nccl.held)
    strategy.close()
    return held


class Steps:
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()


@pytest.mark.parametrize(
    "name", [name for name, entry in STRATEGIES.items() if not entry.servers and name != "ddp_noop"]
)
def test_no_strategy_leaves_gradients_with_the_back_end(nccl: Nccl, name: str) -> None:
    assert held_after(name, PlainWire(), nccl) == 0
    assert nccl.begun


def test_no_compressor_does(nccl: Nccl) -> None:
    compressor = COMPRESSORS.find("int8").load()(Compress(name="int8"))
    assert held_after("flat", QueuedWire(Channel(), compressor), nccl) == 0
    assert nccl.begun
