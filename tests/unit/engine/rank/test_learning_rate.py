"""The learning rate rises, then stays or falls to 0 behind the last step; an optimizer gets it before each step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynbench.config.layers import load_config
from dynbench.config.schema import Train
from dynbench.engine.rank.optimizer_step import LearningRate, rate_factor
from dynbench.errors import ConfigError

EXPECTED = {
    "constant": [0.5, 1, 1, 1, 1, 1],
    "linear": [0.5, 1, 1, 0.75, 0.5, 0.25],
    "cosine": [0.5, 1, 1, 0.853553, 0.5, 0.146447],
}


@pytest.mark.parametrize("schedule", EXPECTED)
def test_an_optimizer_gets_the_rate_of_each_step(schedule: str) -> None:
    train = Train(schedule=schedule, lr_warmup_steps=2, warmup_steps=1, steps=5)
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 3.0)]
    optimizer = torch.optim.SGD(groups)
    rate, found = LearningRate(optimizer, train), []
    for _ in EXPECTED[schedule]:
        rate.advance()
        found.append([group["lr"] for group in optimizer.param_groups])
    assert found == [pytest.approx([factor * 0.1, factor * 3.0], rel=1e-5) for factor in EXPECTED[schedule]]


def test_without_a_schedule_nothing_changes() -> None:
    assert {rate_factor(step, Train()) for step in range(200)} == {1.0}


@pytest.mark.parametrize("schedule", EXPECTED)
def test_it_may_rise_to_the_end(schedule: str) -> None:
    train = Train(schedule=schedule, lr_warmup_steps=4, warmup_steps=0, steps=4)
    assert [rate_factor(step, train) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_a_rate_that_never_gets_up_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.lr_warmup_steps: 8 steps, but there are 7"):
        load_config(None, ["train.steps=5", "train.warmup_steps=2", "train.lr_warmup_steps=8"])
