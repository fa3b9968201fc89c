"""Rows of virtual ranks follow from what was measured, the slowdowns and the communication model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dynbench.config.schema import Train
from dynbench.engine.rank.epochs import Epochs
from dynbench.engine.rank.row_builder import RowBuilder
from dynbench.engine.rank.turns import Moment
from dynbench.engine.rank.virtual import Played, VirtualLoop, gradient_megabytes
from dynbench.runs.records import StepRow
from dynbench.workloads.micro_batch import LossPart


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
    return Played(share, parts, phases, 10.0, 20.0)  # type: ignore[arg-type]  # the phases are all there


def test_everyone_waits_for_the_slowest() -> None:
    lengths, files = np.arange(1, 9), [Collected(), Collected()]
    loop = VirtualLoop(  # type: ignore[arg-type]  # only what `record` uses
        config=None,
        plans=None,
        replica=SimpleNamespace(precision=SimpleNamespace(take_skipped=lambda: False), row=dict, counted=lambda _: {}),
        timer=None,
        memory=None,
        rows=[RowBuilder(rank, "static", "padded", lengths) for rank in (0, 1)],
        writers=files,
        evaluator=None,
        epochs=Epochs(Train(), list),
        comm_ms=4.0,
    )
    turns = [turn((np.array([0, 1]),), 10, 20), turn((np.array([6, 7]),), 15, 35)]
    loop.record(Moment(0, measured=True), turns, plan_ms=3.0, optimizer_ms=5.0)
    quick, slow = (file.rows[0] for file in files)
    assert (quick.sync_ms, slow.sync_ms) == (20 + 4, 4)
    assert quick.step_time_ms == slow.step_time_ms == 3 + (1 + 50) + 4 + 5
    assert slow.compute_ms == 50 and slow.padded_tokens == 16


def test_gradient_size() -> None:
    model = torch.nn.Linear(500, 500, bias=False)
    assert gradient_megabytes(model) == pytest.approx(1.0)
