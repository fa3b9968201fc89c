"""A rank's replica: random streams, micro-batches, running statistics of batch normalisation, second numbers."""

from __future__ import annotations

import copy
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from dynbench.config.layers import load_config
from dynbench.config.schema import Config, Sync, Train
from dynbench.engine.rank.evaluation import Epochs
from dynbench.engine.rank.loop import ArmLoop, session
from dynbench.engine.rank.replica import (
    WIDTH,
    Replica,
    SecondWork,
    average_statistics,
    build_optimizer,
    running_statistics,
    seed_dropout,
)
from dynbench.engine.rank.timers import StepTimer
from dynbench.sync.base import Local
from dynbench.sync.ddp import Ddp
from dynbench.workloads.batches import MicroBatch, evened_out
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")


def drawn(seed: int, rank: int, step: int) -> float:
    seed_dropout(seed, rank, step, CPU)
    return float(torch.rand(()))


def test_dropout_streams_differ_by_seed_rank_and_step():
    keys = [(seed, rank, step) for seed in (0, 1) for rank in (0, 1, 64) for step in (0, 1, 500)]
    assert len({drawn(*key) for key in keys}) == len(keys)
    assert drawn(0, 1, 2) == drawn(0, 1, 2)


@pytest.mark.usefixtures("alone")
def test_the_hook_is_called_once_with_the_last_bucket():
    calls = []
    model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))
    strategy = Ddp(Sync(bucket_mb=0.3))
    strategy.wrap(model, CPU, lambda: calls.append(None))
    for step in range(3):
        strategy.module(torch.ones(2, 300)).sum().backward()
        strategy.finish()
        assert len(calls) == step + 1
    with strategy.accumulating():
        strategy.module(torch.ones(2, 300)).sum().backward()
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_closing_frees_the_wrapped_module():
    strategy = Ddp()
    strategy.wrap(nn.Linear(2, 2), CPU)(torch.ones(1, 2)).sum().backward()
    wrapped = weakref.ref(strategy.module)
    gc.collect()
    assert wrapped() is not None
    strategy.close()
    assert wrapped() is None


def configured(*settings: str) -> Config:
    given = ("train.learning_rate=1.0", "train.precision=fp32", "workload.pad_to_multiple_of=1")
    return load_config(None, [*given, *settings])


def linear(model: nn.Module | None = None, config: Config | None = None, **given: object) -> Replica:
    """A replica of a small model whose loss is its summed output."""
    workload = SimpleNamespace(
        build_model=lambda seed: copy.deepcopy(model or nn.Linear(2, 1)), loss=lambda model, x: model(x["x"]).sum()
    )
    parts = {"timer": StepTimer(CPU), "strategy": Local()} | given
    return Replica(config or configured(), workload, CPU, **parts)  # type: ignore[arg-type]


class Gated(nn.Module):
    """A layer that only even inputs go through."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.always(x)
        return self.sometimes(hidden) if int(x[0, 0]) % 2 == 0 else hidden.sum(1, keepdim=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_virtual_ranks_leave_what_a_step_did_not_use_as_one_process_does(optimizer):
    """Of inputs of two ranks a step: both use the layer, one, none, and both again."""
    inputs = [(0.0, 2.0), (1.0, 4.0), (3.0, 5.0), (1.0, 7.0), (2.0, 2.0)]
    config = configured(f"train.optimizer={optimizer}", "train.learning_rate=0.1", "train.weight_decay=0.1")
    torch.manual_seed(0)
    alone, kept = Gated(), None
    replica, theirs = linear(alone, config), build_optimizer(alone.parameters(), config.train)
    for step in inputs:
        batches = [MicroBatch(2, 2.0, 3, 6, {"x": torch.full((2, 3), value)}) for value in step]
        for batch in batches:
            alone(batch.inputs["x"]).sum().backward()
        theirs.step()
        theirs.zero_grad()
        replica.compute(batches, lambda: 1.0)
        replica.update()
        parameters = list(replica.model.parameters())
        kept = kept or [parameter.grad for parameter in parameters]
        for wanted, found, gradient in zip(alone.parameters(), parameters, kept, strict=True):
            assert torch.equal(wanted, found)
            assert found.grad is gradient, "kept as zeros for the next step"
            assert gradient is None or not gradient.any()
    assert [gradient is None for gradient in kept or ()] == [False] * 4 + [True] * 2


def test_the_same_micro_batch_again_and_again_is_accumulated_up_to_the_last():
    entered, finished = [], []

    class Counting(Local):
        def accumulating(self):  # type: ignore[no-untyped-def]
            entered.append(None)
            return super().accumulating()

        def finish(self) -> None:
            finished.append(None)

    batch = MicroBatch(1, 1.0, 2, 2, {"x": torch.ones(1, 2)})
    parts = linear(strategy=Counting()).compute([batch] * 3, lambda: 1 / 3)
    assert (len(parts), len(entered), len(finished)) == (3, 2, 1)


def test_ranks_with_fewer_micro_batches_repeat_their_smallest_with_weight_zero():
    batches = [MicroBatch(n, float(n), width, n * width, {}) for n, width in ((2, 9), (4, 2), (3, 3))]
    evened = evened_out(batches, 5)
    assert evened[:3] == batches
    assert [(batch.n, batch.repeats) for batch in evened[3:]] == [(4, True)] * 2
    assert evened_out(batches, 3) == batches


def test_what_is_repeated_leaves_running_statistics_as_they_are():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    batches = [MicroBatch(n, float(n), 2, 2 * n, {"x": torch.randn(n, 2) + n}) for n in (3, 5)]
    found = []
    for count in (2, 4):
        replica = linear(model)
        replica.compute(evened_out(batches, count), lambda: 1.0)
        found.append((replica.model.state_dict(), [each.grad for each in replica.model.parameters()]))
    (once, gradients), (again, same) = found
    assert once["1.num_batches_tracked"] == again["1.num_batches_tracked"] == 2
    assert once["1.running_mean"].any() and all(torch.equal(once[name], again[name]) for name in once)
    assert all(torch.equal(*pair) for pair in zip(gradients, same, strict=True))


def test_a_strategy_is_closed_where_all_went_well_and_left_open_by_a_rank_that_fails():
    closed = []
    strategy = SimpleNamespace(close=lambda: closed.append(None))
    with pytest.raises(ArithmeticError), session(strategy):  # type: ignore[arg-type]
        raise ArithmeticError
    assert closed == []
    with session(strategy):  # type: ignore[arg-type]
        pass
    assert closed == [None]


def test_the_wait_for_what_the_step_weighs_is_sync(hands):
    """Where ranks step apart, it is where they wait for the slowest one."""

    def scale() -> float:
        hands.pass_ms(40)
        return 0.5

    timer = StepTimer(CPU)
    batch = MicroBatch(2, 2.0, 1, 2, {"x": torch.ones(2, 2)})
    linear(timer=timer).compute([batch], scale)
    phases, step_ms = timer.end_step()
    assert (phases["sync"], step_ms) == (40, 40)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)))


@pytest.mark.parametrize("samples", [6, 0])
def test_every_rank_has_the_mean_weighted_by_samples(samples):
    """Beside another of four samples, whose statistics are drawn; one that has trained on none takes those."""
    model = network()
    model(torch.randn(6, 3, 8, 8) * 3)
    own = torch.cat(running_statistics(model)).double()
    other = torch.rand(len(own), dtype=torch.float64)
    average_statistics(model, samples, lambda values: np.add(values, [4, *(4 * other)]).tolist())
    wanted = (samples * own + 4 * other) / (samples + 4)
    torch.testing.assert_close(torch.cat(running_statistics(model)).double(), wanted, rtol=1e-6, atol=1e-7)


def test_other_models_exchange_nothing_and_where_nothing_was_trained_nothing_changes():
    average_statistics(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), 5, lambda _: pytest.fail("a collective"))
    model = network()
    before = [statistic.clone() for statistic in running_statistics(model)]
    average_statistics(model, 0, list)
    assert all(map(torch.equal, before, running_statistics(model)))


def test_they_are_made_one_before_an_evaluation_and_not_where_a_signal_parts_the_ranks():
    """Ranks that a signal stops are not after the same step: nobody would answer a collective."""
    model, told = network(), []
    model(torch.randn(4, 3, 8, 8))

    def added(values):
        told.append("averaged")
        return [2 * value for value in values]

    evaluator = SimpleNamespace(
        sum_over_ranks=added, after=lambda *_: told.append("evaluated"), interrupted=lambda *_: told.append("kept")
    )
    replica = SimpleNamespace(strategy=SimpleNamespace(model=model), take_trained=lambda: 4, precision=None)
    loop = ArmLoop(None, replica, None, None, evaluator, Epochs(Train(), list))  # type: ignore[arg-type]  # what is used
    loop.evaluate(3)
    loop.interrupted(4)
    assert told == ["averaged", "evaluated", "kept"]


def test_a_unit_is_as_many_products_as_a_token_has_in_the_matrices():
    model = nn.Sequential(nn.Embedding(5000, 512), nn.Linear(512, 512), nn.LayerNorm(512), nn.Linear(512, 1024))
    assert SecondWork(model, CPU).products == 3 * (512 * 512 + 512 * 1024) // WIDTH**2
    assert SecondWork(nn.Linear(2, 2), CPU).products == 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_it_is_done_for_every_unit_and_trains_nothing(layout, tmp_path, monkeypatch):
    pl.DataFrame({"length": [5, 9, 3, 7] * 8, "patches": [0, 4, 1, 0] * 8}).write_csv(tmp_path / "two.csv")
    units: list[int] = []
    own = SecondWork.run
    monkeypatch.setattr(SecondWork, "run", lambda self, given: units.append(given) or own(self, given))
    gradients = []
    for column in ("patches", "null"):
        settings = ("dataset=lengths", f"data_path={tmp_path / 'two.csv'}", f"second_column={column}", "dropout=0")
        config = configured(*(f"workload.{setting}" for setting in (*settings, f"layout={layout}")))
        replica = Replica(config, build_workload(config), CPU, StepTimer(CPU), Local())
        share = (np.array([0, 1]), np.array([2, 3, 5]), np.array([0, 3]))
        replica.compute(replica.load(share), lambda: 1.0)
        gradients.append([parameter.grad for parameter in replica.model.parameters()])
    assert units == [4, 5]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
