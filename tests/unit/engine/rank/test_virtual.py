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
from dynbench.engine.rank.replica import PlayedStatistics, running_statistics
from dynbench.engine.rank.timers import StepTimer
from dynbench.engine.rank.virtual import VirtualLoop


def test_the_parts_of_a_step_add_up_and_the_first_rank_is_drawn(tmp_path, monkeypatch):
    drawn = set()
    writer = SimpleNamespace(add_scalar=lambda tag, *_: drawn.add(tag.partition("/")[0]))
    monkeypatch.setattr(virtual, "scalars_of", lambda *_, **__: nullcontext(Scalars(writer)))
    config = configured("static", "train.steps=3", "train.global_batch=12", "launch.comm_model='4,0'")
    with loop_of(tmp_path, config, Toy()):
        pass
    parts = pl.sum_horizontal("plan_ms", "data_ms", "compute_ms", "sync_ms", "optimizer_ms")
    rows = rows_of(tmp_path).with_columns(summed_ms=parts)
    assert rows["summed_ms"].to_list() == pytest.approx(rows["step_time_ms"].to_list(), abs=0.01)
    assert drawn == {"rank_0"}


def test_virtual_ranks_have_running_statistics_of_their_own_samples_as_real_ones_do():
    """Of a network with batch normalisation, and samples that differ by rank."""
    torch.manual_seed(0)
    model, trained, seen = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)), [], []
    data = torch.randn(60, 3) * torch.arange(60)[:, None]
    alone = [copy.deepcopy(model) for _ in range(2)]
    replica = SimpleNamespace(
        strategy=SimpleNamespace(model=model),
        precision=None,
        device=torch.device("cpu"),
        load=lambda share: [data[ids] for ids in share],
        compute=lambda batches, _: [trained.append(len(model(batch))) for batch in batches] and [],
        take_trained=lambda: trained.pop(),
    )
    evaluator = SimpleNamespace(
        after=lambda *_: seen.append([each.clone() for each in running_statistics(model)]), sum_over_ranks=list
    )
    unused = dict.fromkeys(("plans", "rows", "writers", "comm_ms"))
    loop = VirtualLoop(
        **unused,
        config=SimpleNamespace(train=Train(), launch=SimpleNamespace(slowdown={})),
        replica=replica,
        timer=StepTimer(torch.device("cpu")),
        evaluator=evaluator,
        memory=MemoryMeter(),
        epochs=Epochs(Train(), list),
        statistics=PlayedStatistics(model, 2),
    )
    for stretch in (0, 30):
        for number, ids in enumerate(np.split(np.arange(stretch, stretch + 30), [6, 10, 16, 20, 26])):
            step, rank = divmod(number, 2)
            loop.play(step, rank, (ids,), 1.0)
            alone[rank](data[ids])
        loop.evaluate(step)
        for found, *own in zip(seen[-1], *map(running_statistics, alone), strict=True):
            mean = (18 * own[0] + 12 * own[1]) / 30
            torch.testing.assert_close(found, mean)
            for each in own:
                each.copy_(mean)
