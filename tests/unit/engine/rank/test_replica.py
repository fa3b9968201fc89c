"""A rank's random stream and token counts; and a strategy that lets go of its process group."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dynbench import clock
from dynbench.config.layers import load_config
from dynbench.config.schema import Sync
from dynbench.engine.rank.loop import session
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.engine.rank.replica import Replica, build_optimizer, seed_dropout
from dynbench.engine.rank.timers import StepTimer
from dynbench.sync.ddp import Ddp
from dynbench.sync.local import Local
from dynbench.workloads.micro_batch import MicroBatch, evened_out

CPU = torch.device("cpu")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def drawn(seed: int, rank: int, step: int) -> float:
    seed_dropout(seed, rank, step, torch.device("cpu"))
    return float(torch.rand(()))


def test_dropout_streams_differ_by_seed_rank_and_step() -> None:
    keys = [(seed, rank, step) for seed in (0, 1) for rank in (0, 1, 64) for step in (0, 1, 500)]
    assert len({drawn(*key) for key in keys}) == len(keys)
    assert drawn(0, 1, 2) == drawn(0, 1, 2)


@pytest.mark.usefixtures("alone")
def test_the_hook_is_called_once_with_the_last_bucket() -> None:
    calls = []
    model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))
    strategy = Ddp(Sync(bucket_mb=0.3))
    strategy.wrap(model, torch.device("cpu"), lambda: calls.append(None))
    for step in range(3):
        strategy.module(torch.ones(2, 300)).sum().backward()
        strategy.finish()
        assert len(calls) == step + 1
    with strategy.accumulating():
        strategy.module(torch.ones(2, 300)).sum().backward()
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_closing_frees_the_wrapped_module() -> None:
    strategy = Ddp()
    strategy.wrap(nn.Linear(2, 2), torch.device("cpu"))(torch.ones(1, 2)).sum().backward()
    wrapped = weakref.ref(strategy.module)
    gc.collect()
    assert wrapped() is not None
    strategy.close()
    assert wrapped() is None


class Gated(nn.Module):
    """A layer that only even inputs go through."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.always(x)
        return self.sometimes(hidden) if int(x[0, 0]) % 2 == 0 else hidden.sum(1, keepdim=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_virtual_ranks_leave_what_a_step_did_not_use_as_one_process_does(optimizer: str) -> None:
    """Of inputs of two ranks a step: both use the layer, one, none, and both again."""
    inputs = [(0.0, 2.0), (1.0, 4.0), (3.0, 5.0), (1.0, 7.0), (2.0, 2.0)]
    train = load_config(
        None, [f"train.optimizer={optimizer}", "train.learning_rate=0.1", "train.weight_decay=0.1"]
    ).train
    torch.manual_seed(0)
    alone, strategy = Gated(), Local()
    module = strategy.wrap(copy.deepcopy(alone), CPU)
    theirs, ours = build_optimizer(alone.parameters(), train), build_optimizer(module.parameters(), train)
    replica = SimpleNamespace(
        stepping=False,
        precision=Precision("fp32", CPU),
        optimizer=ours,
        strategy=strategy,
        _rate=SimpleNamespace(advance=lambda: None),
    )
    kept = None
    for step in inputs:
        for model in (alone, module):
            for value in step:
                model(torch.full((2, 3), value)).sum().backward()
        theirs.step()
        theirs.zero_grad()
        Replica.update(replica)  # type: ignore[arg-type]
        kept = kept or [parameter.grad for parameter in module.parameters()]
        for wanted, found, gradient in zip(alone.parameters(), module.parameters(), kept, strict=True):
            assert torch.equal(wanted, found)
            assert found.grad is gradient and (gradient is None or not gradient.any()), (
                "kept as zeros for the next step"
            )
    assert [gradient is None for gradient in kept or ()] == [False] * 4 + [True] * 2


def test_the_same_micro_batch_again_and_again_is_accumulated_up_to_the_last() -> None:
    entered, finished = [], []

    class Counting(Local):
        def accumulating(self):  # type: ignore[no-untyped-def]
            entered.append(None)
            return super().accumulating()

        def finish(self) -> None:
            finished.append(None)

    workload = SimpleNamespace(build_model=lambda seed: nn.Linear(2, 1), loss=lambda model, x: model(x["x"]).mean())
    config = load_config(None, ["train.learning_rate=1.0", "train.precision=fp32", "workload.pad_to_multiple_of=1"])
    device = torch.device("cpu")
    replica = Replica(config, workload, device, StepTimer(device), Counting())  # type: ignore[arg-type]
    batch = MicroBatch(1, 1.0, 2, 2, {"x": torch.ones(1, 2)})
    parts = replica.compute([batch] * 3, lambda: 1 / 3)
    assert (len(parts), len(entered), len(finished)) == (3, 2, 1)


def test_ranks_with_fewer_micro_batches_repeat_their_smallest_with_weight_zero() -> None:
    batches = [MicroBatch(n, float(n), width, n * width, {}) for n, width in ((2, 9), (4, 2), (3, 3))]
    evened = evened_out(batches, 5)
    assert evened[:3] == batches
    assert [(batch.n, batch.repeats) for batch in evened[3:]] == [(4, True)] * 2
    assert evened_out(batches, 3) == batches


def test_what_is_repeated_leaves_running_statistics_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    workload = SimpleNamespace(build_model=lambda seed: copy.deepcopy(model), loss=lambda model, x: model(x["x"]).sum())
    config = load_config(None, ["train.learning_rate=1.0", "train.precision=fp32", "workload.pad_to_multiple_of=1"])
    batches = [MicroBatch(n, float(n), 2, 2 * n, {"x": torch.randn(n, 2) + n}) for n in (3, 5)]
    found = []
    for count in (2, 4):
        replica = Replica(config, workload, CPU, StepTimer(CPU), Local())  # type: ignore[arg-type]
        replica.compute(evened_out(batches, count), lambda: 1.0)
        found.append((replica.model.state_dict(), [each.grad for each in replica.model.parameters()]))
    (once, gradients), (again, same) = found
    assert once["1.num_batches_tracked"] == again["1.num_batches_tracked"] == 2
    assert once["1.running_mean"].any() and all(torch.equal(once[name], again[name]) for name in once)
    assert all(torch.equal(*pair) for pair in zip(gradients, same, strict=True))


def test_a_strategy_is_closed_where_all_went_well_and_left_open_by_a_rank_that_fails() -> None:
    closed = []
    strategy = SimpleNamespace(close=lambda: closed.append(None))
    with pytest.raises(ArithmeticError), session(strategy):  # type: ignore[arg-type]
        raise ArithmeticError
    assert closed == []
    with session(strategy):  # type: ignore[arg-type]
        pass
    assert closed == [None]


def test_the_wait_for_what_the_step_weighs_is_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks step apart, it is where they wait for the slowest one."""
    shown = SimpleNamespace(now_ms=0.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: round(shown.now_ms * clock.NS_PER_MS)))

    def scale() -> float:
        shown.now_ms += 40
        return 0.5

    workload = SimpleNamespace(
        build_model=lambda _: nn.Linear(1, 1), loss=lambda module, inputs: module(inputs["x"]).sum()
    )
    config, timer = load_config(None, ["workload.pad_to_multiple_of=1", "train.learning_rate=0.1"]), StepTimer(CPU)
    with session(Local(config.sync)) as strategy:
        one = Replica(config, workload, CPU, timer, strategy)
        one.compute([MicroBatch(2, 2.0, 1, 2, {"x": torch.ones(2, 1)})], scale)
    phases, step_ms = timer.end_step()
    assert (phases["sync"], step_ms) == (40, 40)
