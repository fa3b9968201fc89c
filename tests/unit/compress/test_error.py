"""How far a compressed mean is from the exact one, by hand."""

from __future__ import annotations

import pytest
import torch

from dynbench.compress import feedback
from dynbench.compress.feedback import ERROR_COLUMNS, Error, exact_mean

NAMES = [column.name for column in ERROR_COLUMNS]


def test_what_two_gradients_are_off_by_together() -> None:
    """Of 3, 4 the 4 was lost; of 12, which is kept, nothing: 4 of a norm of 13."""
    seen = Error()
    seen.add(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))
    assert seen.row(0.5) == {
        "grad_rel_error": pytest.approx(4 / 5),
        "grad_rel_error_max": 1.0,
        "grad_cos_sim": pytest.approx(9 / 15),
        "residual_norm": 0.5,
    }
    seen.add(torch.tensor([-12.0]), torch.tensor([-12.0]))
    assert seen.row(0.5) == {
        "grad_rel_error": pytest.approx(4 / 13),
        "grad_rel_error_max": pytest.approx(4 / 12),
        "grad_cos_sim": pytest.approx((9 + 144) / (13 * (9 + 144) ** 0.5)),
        "residual_norm": 0.5,
    }


def test_sums_are_exact_where_single_precision_would_round() -> None:
    exact = torch.full((1000,), 1.0)
    exact[0] = 1e5
    seen = Error()
    seen.add(exact, exact + 1e-2 * (torch.arange(1000) > 0))
    apart = float((exact[1:] + 1e-2).double().sub(exact[1:].double()).square().sum())
    assert seen.row(0.0)["grad_rel_error"] == pytest.approx((apart / (1e10 + 999)) ** 0.5, rel=1e-12)


def test_where_nothing_was_measured_the_columns_are_empty() -> None:
    assert Error().row(1.0) == dict.fromkeys(NAMES)


def test_a_gradient_of_nothing_has_no_relative_error() -> None:
    seen = Error()
    seen.add(torch.zeros(3), torch.tensor([0.0, 2.0, 0.0]))
    assert seen.row(0.0) == {
        "grad_rel_error": None,
        "grad_rel_error_max": None,
        "grad_cos_sim": None,
        "residual_norm": 0.0,
    }
    empty = Error()
    empty.add(torch.zeros(0), torch.zeros(0))
    assert empty.measured
    assert empty.row(0.0)["grad_rel_error"] is None


def test_the_exact_mean_leaves_the_gradient_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Channel:
        world_size, group = 4, "those that train"

    asked: list[object] = []
    monkeypatch.setattr(feedback.dist, "all_reduce", lambda sent, group: asked.append(group) or sent.mul_(4))
    flat = torch.tensor([8.0, -4.0])
    assert exact_mean(Channel(), flat).tolist() == [8.0, -4.0]
    assert flat.tolist() == [8.0, -4.0]
    assert asked == ["those that train"]
