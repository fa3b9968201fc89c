"""Rows of virtual ranks follow from what was measured, the slowdowns and the communication model."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from toys import Toy
from virtual_runs import configured, loop_of, rows_of

from dynbench.config.schema import Train
from dynbench.engine.rank import virtual
from dynbench.engine.rank.evaluation import Epochs, Scalars
from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.replica import PlayedStatistics, gradient_megabytes, running_statistics
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.virtual import VirtualLoop
from dynbench.workloads.batches import LossPart


def test_everyone_waits_for_the_slowest_and_the_all_reduce_and_the_first_is_drawn(tmp_path, monkeypatch):
    drawn = set()
    writer = SimpleNamespace(add_scalar=lambda tag, *_: drawn.add(tag.partition("/")[0]))
    monkeypatch.setattr(virtual, "scalars_of", lambda *_, **__: nullcontext(Scalars(writer)))
    config = configured("static", "train.steps=3", "train.global_batch=12", "launch.comm_model='4,0'")
    with loop_of(tmp_path, config, Toy()):
        pass
    parts = pl.sum_horizontal("plan_ms", "data_ms", "compute_ms", "sync_ms", "optimizer_ms")
    rows = rows_of(tmp_path).with_columns(summed_ms=parts)
    assert rows["summed_ms"].to_list() == pytest.approx(rows["step_time_ms"].to_list(), abs=0.01)
    steps = rows.group_by("step").agg(pl.col("sync_ms").min(), pl.col("step_time_ms").n_unique())
    assert steps["sync_ms"].to_list() == pytest.approx([4.0] * 3, abs=0.01)
    assert steps["step_time_ms"].to_list() == [1] * 3
    assert drawn == {"rank_0"}


def test_gradient_size():
    model = torch.nn.Linear(500, 500, bias=False)
    assert gradient_megabytes(model) == 1.0


class Network:
    """What a virtual loop plays: a network with batch normalisation, and samples that differ by rank."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        self.samples = torch.randn(60, 3) * torch.arange(60)[:, None]
        self.strategy, self.precision, self.device = SimpleNamespace(model=self.model), None, torch.device("cpu")
        self._trained = 0

    def load(self, share: tuple[np.ndarray, ...]) -> list[torch.Tensor]:
        return [self.samples[ids] for ids in share]

    def compute(self, batches: list[torch.Tensor], _: object) -> list[LossPart]:
        for batch in batches:
            self.model(batch)
            self._trained += len(batch)
        return []

    def take_trained(self) -> int:
        taken, self._trained = self._trained, 0
        return taken


def test_virtual_ranks_have_running_statistics_of_their_own_samples_as_real_ones_do():
    network, seen = Network(), []
    alone = [copy.deepcopy(network.model) for _ in range(2)]
    evaluator = SimpleNamespace(
        after=lambda *_: seen.append([each.clone() for each in running_statistics(network.model)]), sum_over_ranks=list
    )
    unused = dict.fromkeys(("plans", "rows", "writers", "comm_ms"))
    loop = VirtualLoop(
        **unused,
        config=SimpleNamespace(train=Train(), launch=SimpleNamespace(slowdown={})),
        replica=network,
        timer=StepTimer(torch.device("cpu")),
        evaluator=evaluator,
        memory=MemoryMeter(),
        epochs=Epochs(Train(), list),
        statistics=PlayedStatistics(network.model, 2),
    )
    for stretch in (0, 1):
        samples = [0, 0]
        for step in range(3):
            first = 30 * stretch + 10 * step
            for rank, ids in enumerate((np.arange(first, first + 6), np.arange(first + 6, first + 10))):
                loop.play(step, rank, (ids,), 1.0)
                alone[rank](network.samples[ids])
                samples[rank] += len(ids)
        loop.evaluate(step)
        own = [running_statistics(model) for model in alone]
        for place, found in enumerate(seen[-1]):
            mean = sum(number * of_rank[place] for number, of_rank in zip(samples, own, strict=True)) / sum(samples)
            torch.testing.assert_close(found, mean)
            for of_rank in own:
                of_rank[place].copy_(mean)
