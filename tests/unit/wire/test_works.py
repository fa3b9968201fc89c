"""NCCL keeps what a collective reads and writes until its work is waited for: that is where its result is used.

The back end here is made up: it keeps what it is given as NCCL does, and finishes at once.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from sync_jobs import begun
from torch import Tensor, nn
from torch.futures import Future

from dynbench.config.schema import Compress, Sync
from dynbench.plugins import COMPRESSORS, STRATEGIES
from dynbench.wire import channel as channel_module
from dynbench.wire.base import QueuedWire, Wire
from dynbench.wire.channel import Channel


class Nccl:
    """Collectives of one rank whose works keep their tensors; `sizes` are their elements."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.begun = 0

    def call(self, *tensors: object, async_op: bool = False, **_: object) -> dist.Work:
        nccl, size = self, sum(each.numel() for each in tensors if isinstance(each, Tensor))
        self.begun += 1

        class Work(dist.Work):
            def wait(self, timeout: timedelta = timedelta(0)) -> bool:
                if size in nccl.sizes:
                    nccl.sizes.remove(size)
                return True

            def get_future(self) -> Future[object]:
                future: Future[object] = Future()
                future.set_result([])
                return future

        if async_op:
            self.sizes.append(size)
        return Work()


@pytest.fixture
def nccl(alone: None, monkeypatch: pytest.MonkeyPatch) -> Nccl:
    made = Nccl()
    monkeypatch.setattr(channel_module, "_backend", lambda group, device: "nccl")
    for name in ("all_reduce", "broadcast", "all_to_all_single"):
        monkeypatch.setattr(dist, name, made.call)

    def copied(out: Tensor, given: Tensor, async_op: bool, **_: object) -> dist.Work:
        out.copy_(given)
        return made.call(out, given, async_op=async_op)

    for name in ("_all_gather", "_reduce_scatter"):
        monkeypatch.setattr(channel_module, name, copied)
    return made


def test_a_collective_lets_go_where_its_result_is_used_and_not_before(nccl: Nccl) -> None:
    future = Channel().all_reduce(torch.ones(8))
    assert nccl.sizes == [8], "nothing has used it: what comes now overlaps"
    assert future.wait().tolist() == [1] * 8
    assert nccl.sizes == []


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        *((name, None) for name, entry in STRATEGIES.items() if not entry.servers and name != "ddp_noop"),
        ("flat", "int8"),
    ],
)
def test_no_strategy_and_no_compressor_leaves_gradients_with_the_back_end(
    nccl: Nccl, name: str, compress: str | None
) -> None:
    wire = Wire()
    if compress is not None:
        wire = QueuedWire(Channel(), COMPRESSORS.find(compress).load()(Compress(name=compress)))
    strategy = STRATEGIES.find(name).load()(Sync(name=name), wire)
    steps = begun(strategy, nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    nccl.sizes.clear()
    for _ in range(2):
        steps(lambda module: module(torch.ones(2, 64)).sum())
    strategy.drain()
    assert nccl.sizes == [] and nccl.begun
    strategy.close()
