"""Rows of virtual ranks follow from what was measured, the slowdowns and the communication model."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dynbench.config.schema import Train
from dynbench.engine.rank.evaluation import Epochs
from dynbench.engine.rank.memory import MemoryMeter, MemoryNow
from dynbench.engine.rank.replica import PlayedStatistics, gradient_megabytes, running_statistics
from dynbench.engine.rank.row_builder import RowBuilder
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.turns import Moment
from dynbench.engine.rank.virtual import Played, VirtualLoop
from dynbench.runs.records import StepRow
from dynbench.workloads.batches import LossPart


class Collected:
    def __init__(self) -> None:
        self.rows: list[StepRow] = []

    def write(self, row: StepRow, _: object) -> None:
        self.rows.append(row)


def turn(share: tuple[np.ndarray, ...], forward_ms: float, backward_ms: float) -> Played:
    phases = {"plan": 0.0, "data": 1.0, "forward": forward_ms, "backward": backward_ms, "sync": 0.0, "optimizer": 0.0}
    parts = [
        LossPart(len(ids), 1.0, (width := int(ids.max()) + 1), len(ids) * width, torch.tensor(0.5)) for ids in share
    ]
    return Played(share, parts, phases, MemoryNow(10.0, 20.0))  # type: ignore[arg-type]  # the phases are all there


def loop_of(model: torch.nn.Module, **parts: Any) -> VirtualLoop:
    """The loop of two virtual ranks, as far as a test uses it."""
    unused = dict.fromkeys(("config", "plans", "replica", "timer", "evaluator"))
    given = {"memory": MemoryMeter(), "rows": [], "writers": [], "epochs": Epochs(Train(), list), "comm_ms": 0.0}
    return VirtualLoop(**{**unused, **given, **parts}, statistics=PlayedStatistics(model, 2))


def test_everyone_waits_for_the_slowest():
    lengths, files = np.arange(1, 9), [Collected(), Collected()]
    loop = loop_of(
        torch.nn.Linear(1, 1),
        replica=SimpleNamespace(precision=SimpleNamespace(take_skipped=lambda: False), row=dict, counted=lambda _: {}),
        rows=[RowBuilder(rank, "static", "padded", lengths) for rank in (0, 1)],
        writers=files,
        comm_ms=4.0,
    )
    turns = [turn((np.array([0, 1]),), 10, 20), turn((np.array([6, 7]),), 15, 35)]
    loop.record(Moment(0, measured=True), turns, plan_ms=3.0, optimizer_ms=5.0)
    quick, slow = (file.rows[0] for file in files)
    assert (quick.sync_ms, slow.sync_ms) == (20 + 4, 4)
    assert quick.step_time_ms == slow.step_time_ms == 3 + (1 + 50) + 4 + 5
    assert slow.compute_ms == 50 and slow.padded_tokens == 16


def test_gradient_size():
    model = torch.nn.Linear(500, 500, bias=False)
    assert gradient_megabytes(model) == pytest.approx(1.0)


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
    loop = loop_of(
        network.model,
        config=SimpleNamespace(train=Train(), launch=SimpleNamespace(slowdown={})),
        replica=network,
        timer=StepTimer(torch.device("cpu")),
        evaluator=evaluator,
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
