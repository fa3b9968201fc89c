"""Precision, clipping and the learning rate of an optimizer's step."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from dynbench.config.schema import Train
from dynbench.engine.rank.optimizer_step import Clipper, LearningRate, Precision
from dynbench.engine.rank.replica import build_optimizer
from dynbench.sync.base import gradient_norm

CPU = torch.device("cpu")


def stepped(precision: Precision, gradient: float, weight: nn.Parameter) -> tuple[float, bool]:
    """(how far a weight of one moved at a rate of one, the step counts as skipped)."""
    precision.backward((weight * gradient).sum())
    precision.step(torch.optim.SGD([weight], lr=1.0))
    return 1 - weight.item(), precision.take_skipped()


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
    precision = Precision(name, CPU, clip=clipper.clip)
    assert stepped(precision, gradient, weight) == (pytest.approx(moved, rel=1e-5), moved == 0)
    assert not precision.take_skipped(), "counted once"
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


@pytest.mark.parametrize(
    ("schedule", "rises", "expected"),
    [
        ("constant", 0, [1] * 6),
        ("constant", 2, [0.5, 1, 1, 1, 1, 1]),
        ("linear", 2, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", 2, [0.5, 1, 1, 0.853553, 0.5, 0.146447]),
        *((schedule, 6, [n / 6 for n in range(1, 7)]) for schedule in ("constant", "linear", "cosine")),
    ],
)
def test_an_optimizer_gets_the_rate_of_each_step(schedule, rises, expected):
    train = Train(schedule=schedule, lr_warmup_steps=rises, warmup_steps=1, steps=5)
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 3.0)])
    rate = LearningRate(optimizer, train)
    for factor in expected:
        rate.advance()
        found = [group["lr"] for group in optimizer.param_groups]
        assert found == pytest.approx([factor * 0.1, factor * 3.0], rel=1e-5)
