"""fp16: a step is skipped where a gradient overflowed, and where another rank says that one of its own did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dynbench.engine.rank.optimizer_step import Precision

pytestmark = pytest.mark.gpu


def stepped(device: torch.device, gradient: float, agree: Callable[[Tensor], object] | None) -> tuple[bool, bool]:
    """Whether the parameter moved, and whether the step counts as skipped."""
    parameter = torch.nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.AdamW([parameter], lr=1.0, fused=True)
    precision = Precision("fp16", device, agree)
    precision.backward((parameter * gradient).sum())
    precision.step(optimizer)
    return bool(parameter.item() != 0), precision.take_skipped()


def test_an_overflow_is_skipped(device: torch.device) -> None:
    assert stepped(device, float("inf"), None) == (False, True)
    assert stepped(device, 1.0, None) == (True, False)


def test_all_skip_what_one_has_to(device: torch.device) -> None:
    asked: list[torch.device] = []

    def another_overflowed(found: Tensor) -> None:
        asked.append(found.device)
        found.fill_(1.0)

    assert stepped(device, 1.0, another_overflowed) == (False, True)
    assert asked == [device]


def test_a_forward_pass_is_in_half_precision(device: torch.device) -> None:
    x = torch.ones(2, 2, device=device)
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        with Precision(name, device).autocast():
            assert (x @ x).dtype is dtype
