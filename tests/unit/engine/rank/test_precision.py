"""fp32 leaves everything alone; a scaler that overflows skips the step and says so once."""

from __future__ import annotations

import torch

from dynbench.engine.rank.precision import Precision


def stepped(precision: Precision, gradient: float) -> tuple[bool, bool]:
    """(the weight moved, the step counts as skipped)."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    precision.backward((weight * gradient).sum())
    precision.step(optimizer)
    return bool(weight.item() != 1), precision.take_skipped()


def test_fp32_never_skips() -> None:
    assert stepped(Precision("fp32", torch.device("cpu")), 2.0) == (True, False)


def test_overflow_is_skipped() -> None:
    precision = Precision("fp16", torch.device("cpu"))
    assert stepped(precision, float("inf")) == (False, True)
    assert stepped(precision, 1.0) == (True, False)


def test_autocast_only_where_asked() -> None:
    x = torch.ones(2, 2)
    with Precision("fp32", torch.device("cpu")).autocast():
        assert (x @ x).dtype is torch.float32
    with Precision("bf16", torch.device("cpu")).autocast():
        assert (x @ x).dtype is torch.bfloat16
