"""What a further micro-batch costs: measured, kept in the record, planned with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from probes import COST, make_probe

from dynbench.config.load import load_config
from dynbench.engine.planning import build_cost
from dynbench.errors import UsageError
from dynbench.probe.timing import Timings, at_full_speed, fit_cost, further_at_full_speed, time_grid
from dynbench.probe.trial import TrialStep
from dynbench.runs.store import RunStore
from dynbench.workloads.registry import build_workload

ALPHA, BETA, FURTHER = 7.0, 0.1, 5.0


def step_ms(n: int, length: int, parts: int = 1) -> float:
    return ALPHA + (parts - 1) * FURTHER + parts * n * length * BETA


class Planted(TrialStep):
    """Steps of a planted price, on a machine that gets slower and stumbles now and then."""

    def __init__(self) -> None:
        self.rng, self.done = np.random.default_rng(0), 0

    def _ms(self, n: int, length: int, micro_batches: int = 1) -> float:
        self.done += 1
        stumble = 50.0 if self.rng.random() < 0.1 else 0.0
        return step_ms(n, length, micro_batches) * (1 + 0.001 * self.done) + self.rng.normal(0, 0.2) + stumble


def test_the_price_is_found_under_drift_and_outliers() -> None:
    assert Planted().further(4, 32, 9) == pytest.approx(FURTHER, rel=0.1)


def test_a_step_of_several_micro_batches_adds_up_their_gradients() -> None:
    config = load_config(
        None,
        ["train.precision=fp32", "train.learning_rate=0.0005", "workload.pad_to_multiple_of=1", "workload.dropout=0.0"],
    )
    step = TrialStep(config, build_workload(config), torch.device("cpu"))
    norms = []

    def note(optimizer: torch.optim.Optimizer) -> None:
        norms.append(sum(float(p.grad.norm()) ** 2 for p in optimizer.param_groups[0]["params"]))

    step._precision = SimpleNamespace(
        autocast=step._precision.autocast,
        backward=step._precision.backward,
        step=note,
    )
    step.step(2, 16)
    step.step(2, 16, 3)
    assert norms[1] == pytest.approx(9 * norms[0], rel=1e-3)


def timed(points: Sequence[tuple[int, int]], slowdown: Mapping[int, float]) -> Timings:
    """`time_grid` on two ranks of planted times."""

    class Children:
        gradient_bytes, world_size = 10**6, 2

        def ask_all(self, request: Mapping[str, int]) -> list[dict[str, object]]:
            if request["op"] == "time":
                return [{"ms": [step_ms(request["n"], request["length"])]}] * 2
            if request["op"] == "further":
                assert (3 * request["n"], request["length"]) <= max(points)
                return [{"ms": FURTHER}] * 2
            return [{"ms": 1.0}] * 2

    @contextmanager
    def start() -> Iterator[Children]:
        yield Children()

    return time_grid(start, points, 1, 0, lambda text: None, slowdown)


def test_the_price_reaches_the_cost_model_at_the_fastest_ranks_speed() -> None:
    timings = timed([(n, length) for n in (1, 2, 4, 8) for length in (32, 64)], {1: 2.0})
    assert timings.further == [FURTHER, 2 * FURTHER]
    speeds = np.array([1.0, 0.5])
    further_ms = further_at_full_speed(timings.further, speeds)
    fit = fit_cost(at_full_speed(timings.points, speeds), 0, 0.001, further_ms)
    assert (fit.alpha_ms, fit.further_ms) == pytest.approx((ALPHA, FURTHER))
    assert further_at_full_speed([3.0, 5.0], None) == 4
    assert further_at_full_speed([-0.5, -0.5], None) == 0


def test_where_too_little_fits_the_price_is_unknown() -> None:
    timings = timed([(1, 32), (2, 32), (1, 64)], {})
    assert timings.further is None
    assert further_at_full_speed(timings.further, np.array([1.0, 0.5])) is None
    assert timed([], {}).further is None


def stored_probe(root: Path, **cost: float) -> None:
    """A probe run called p with this cost model."""
    make_probe(RunStore(root), name="p", cost_model={**COST, "alpha_ms": 3.0, "beta_ms_per_token": 0.1, **cost})


@pytest.mark.parametrize(
    ("stored", "overrides", "surcharge"),
    [
        ({}, (), 0.0),
        ({"further_ms": 5.0}, (), 2.0),
        ({"further_ms": 5.0}, ("schedule.further_ms=1.0",), -2.0),
        ({"further_ms": 5.0}, ("schedule.cost_coefficients=[3.0, 0.1, 0.0]",), 0.0),
        ({}, ("schedule.cost_coefficients=[3.0, 0.1, 0.0]", "schedule.further_ms=4.0"), 1.0),
    ],
)
def test_plans_use_the_price_of_the_probe_or_of_the_configuration(
    tmp_path: Path, stored: dict[str, float], overrides: tuple[str, ...], surcharge: float
) -> None:
    stored_probe(tmp_path, **stored)
    config = load_config(None, ["probe.run=p", *overrides])
    assert build_cost(config, 1, tmp_path).surcharge == surcharge


def test_a_fit_that_tells_no_plans_apart_is_refused(tmp_path: Path) -> None:
    stored_probe(tmp_path, beta_ms_per_token=0.0)
    with pytest.raises(UsageError, match=r"probe\.run: 'p' found the same step time at every length"):
        build_cost(load_config(None, ["probe.run=p"]), 1, tmp_path)
