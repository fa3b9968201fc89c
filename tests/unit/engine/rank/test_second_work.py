"""What the second number of a sample costs in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from dynbench.config.layers import load_config
from dynbench.engine.rank.replica import WIDTH, Replica, SecondWork
from dynbench.engine.rank.timers import StepTimer
from dynbench.sync.local import Local
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")


def test_a_unit_is_as_many_products_as_a_token_has_in_the_matrices() -> None:
    model = nn.Sequential(nn.Embedding(5000, 512), nn.Linear(512, 512), nn.LayerNorm(512), nn.Linear(512, 1024))
    assert SecondWork(model, CPU).products == 3 * (512 * 512 + 512 * 1024) // WIDTH**2
    assert SecondWork(nn.Linear(2, 2), CPU).products == 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_it_is_done_for_every_unit_and_trains_nothing(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl.DataFrame({"length": [5, 9, 3, 7] * 8, "patches": [0, 4, 1, 0] * 8}).write_csv(tmp_path / "two.csv")
    units: list[int] = []
    own = SecondWork.run
    monkeypatch.setattr(SecondWork, "run", lambda self, given: (units.append(given), own(self, given))[1])
    gradients = []
    for column in ("patches", "null"):
        config = load_config(
            None,
            [
                *("workload.dataset=lengths", f"workload.data_path={tmp_path / 'two.csv'}", "train.precision=fp32"),
                *(f"workload.second_column={column}", f"workload.layout={layout}"),
                *("workload.pad_to_multiple_of=1", "workload.dropout=0", "train.learning_rate=0.1"),
            ],
        )
        replica = Replica(config, build_workload(config), CPU, StepTimer(CPU), Local())
        share = (np.array([0, 1]), np.array([2, 3, 5]), np.array([0, 3]))
        replica.compute(replica.load(share), lambda: 1.0)
        gradients.append([parameter.grad for parameter in replica.model.parameters()])
    assert units == [4, 5]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
