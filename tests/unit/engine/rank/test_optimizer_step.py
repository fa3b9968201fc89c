"""Precision, clipping and the learning rate of an optimizer's step."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from dynbench.config.schema import Train
from dynbench.engine.rank.optimizer_step import Clipper, LearningRate, Precision, rate_factor
from dynbench.engine.rank.replica import build_optimizer
from dynbench.sync.base import gradient_norm

CPU = torch.device("cpu")


def stepped(precision: Precision, gradient: float, weight: nn.Parameter | None = None) -> tuple[float, bool]:
    """(how far a weight of one moved at a rate of one, the step counts as skipped)."""
    weight = nn.Parameter(torch.ones(1)) if weight is None else weight
    precision.backward((weight * gradient).sum())
    precision.step(torch.optim.SGD([weight], lr=1.0))
    return 1 - weight.item(), precision.take_skipped()


def test_only_an_overflow_is_skipped():
    assert stepped(Precision("fp32", CPU), 2.0) == (2, False)
    precision = Precision("fp16", CPU)
    assert stepped(precision, float("inf")) == (0, True)
    assert stepped(precision, 1.0) == (1, False)


@pytest.mark.parametrize("elsewhere", [0.0, 1.0])
def test_a_rank_without_a_gradient_agrees_with_the_others(elsewhere):
    """As one does whose shard nothing has used: every rank takes part with one flag."""
    weight, asked = nn.Parameter(torch.ones(1)), []

    def agree(flag: torch.Tensor) -> None:
        asked.append(float(flag))
        flag.fill_(elsewhere)

    precision = Precision("fp16", CPU, agree)
    precision.backward(torch.ones(1, requires_grad=True).sum())
    precision.step(torch.optim.AdamW([weight], lr=0.1, fused=True))
    assert asked == [0.0]
    assert precision.take_skipped() == bool(elsewhere)


@pytest.mark.parametrize(
    ("name", "gradient", "moved"),
    [*((name, *each) for name in ("fp32", "fp16") for each in ((8.0, 2.0), (1.5, 1.5))), ("fp16", float("inf"), 0.0)],
)
def test_gradients_are_clipped_once_they_are_unscaled_and_an_overflow_is_skipped(name, gradient, moved):
    weight = nn.Parameter(torch.ones(1))
    clipper = Clipper(2.0, lambda: gradient_norm([weight]))
    found = stepped(Precision(name, CPU, clip=clipper.clip), gradient, weight)
    assert found == (pytest.approx(moved, rel=1e-5), moved == 0)
    assert clipper.row() == {"grad_norm": pytest.approx(gradient), "clipped": int(gradient > 2)}
    assert clipper.row() == {"grad_norm": None, "clipped": None}


def test_autocast_only_where_asked():
    x = torch.ones(2, 2)
    with Precision("fp32", CPU).autocast():
        assert (x @ x).dtype is torch.float32
    with Precision("bf16", CPU).autocast():
        assert (x @ x).dtype is torch.bfloat16


def test_momentum_is_right_after_a_first_step_that_overflowed(monkeypatch):
    """The fused kernel writes no momentum then; what torch has it in is memory as it was found, 777 here."""
    found = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda like, **options: found(like, **options).fill_(777))
    parameter = nn.Parameter(torch.ones(3))
    settings = Train(optimizer="sgd", momentum=0.9, learning_rate=0.1, weight_decay=0, precision="fp16")
    optimizer = build_optimizer([parameter], settings)
    optimizer.grad_scale = torch.tensor(1.0)
    for gradient, overflowed in ((float("inf"), 1.0), (1.0, 0.0), (1.0, 0.0)):
        parameter.grad = torch.full((3,), gradient)
        optimizer.found_inf = torch.tensor(overflowed)
        optimizer.step()
    assert parameter.tolist() == pytest.approx([1 - 0.1 - 0.1 * 1.9] * 3)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_fp32_is_no_tf32(name):
    """Which cuDNN takes for it unless told otherwise, and cuBLAS where the environment says so."""
    flags = (torch.backends.cudnn, torch.backends.cuda.matmul)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = [each.allow_tf32 for each in flags]
        for each in flags:
            each.allow_tf32 = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Precision(name, CPU)
        assert [each.allow_tf32 for each in flags] == 2 * [name != "fp32"]
        with torch.backends.cudnn.flags(enabled=False):  # refuses flags of which some are in older names
            pass
    finally:
        for each, value in zip(flags, before, strict=True):
            each.allow_tf32 = value


EXPECTED = {
    "constant": [0.5, 1, 1, 1, 1, 1],
    "linear": [0.5, 1, 1, 0.75, 0.5, 0.25],
    "cosine": [0.5, 1, 1, 0.853553, 0.5, 0.146447],
}


@pytest.mark.parametrize("schedule", EXPECTED)
def test_an_optimizer_gets_the_rate_of_each_step(schedule):
    train = Train(schedule=schedule, lr_warmup_steps=2, warmup_steps=1, steps=5)
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 3.0)]
    optimizer = torch.optim.SGD(groups)
    rate, found = LearningRate(optimizer, train), []
    for _ in EXPECTED[schedule]:
        rate.advance()
        found.append([group["lr"] for group in optimizer.param_groups])
    assert found == [pytest.approx([factor * 0.1, factor * 3.0], rel=1e-5) for factor in EXPECTED[schedule]]


def test_without_a_schedule_nothing_changes_and_a_rate_may_rise_to_the_end():
    assert {rate_factor(step, Train()) for step in range(200)} == {1.0}
    for schedule in EXPECTED:
        train = Train(schedule=schedule, lr_warmup_steps=4, warmup_steps=0, steps=4)
        assert [rate_factor(step, train) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
