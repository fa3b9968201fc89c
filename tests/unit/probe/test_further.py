"""What a further micro-batch costs: measured, kept in the record, planned with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from probes import COST, Answer, FakeChildren, make_probe, resolved
from sampled import sampled

from dynbench.config.layers import load_config
from dynbench.engine.planning import build_cost
from dynbench.engine.rank.loop import build_strategy
from dynbench.errors import UsageError
from dynbench.plugins import STRATEGIES
from dynbench.probe.fit import Timings, at_full_speed, fit_cost, further_at_full_speed, time_grid
from dynbench.probe.trial import TrialStep
from dynbench.runs.store import RunStore
from dynbench.sync.base import Local
from dynbench.workloads.batches import CPU, LossPart, MicroBatch
from dynbench.workloads.registry import build_workload

ALPHA, BETA, FURTHER = 7.0, 0.1, 5.0


def step_ms(n: int, length: int, parts: int = 1) -> float:
    return ALPHA + (parts - 1) * FURTHER + parts * n * length * BETA


class Planted(TrialStep):
    """Steps of a planted price, on a machine that gets slower and stumbles now and then."""

    def __init__(self) -> None:
        self.rng, self.done = np.random.default_rng(0), 0
        self.steps: list[tuple[int, int, int]] = []
        self.workload = SimpleNamespace(train=SimpleNamespace(lengths=np.arange(5, 60)))  # type: ignore[assignment]

    def split_ms(self, n: int, length: int, micro_batches: int) -> float:
        self.done += 1
        self.steps.append((n, length, micro_batches))
        stumble = 50.0 if self.rng.random() < 0.1 else 0.0
        return step_ms(n, length, micro_batches) * (1 + 0.001 * self.done) + self.rng.normal(0, 0.2) + stumble


def test_the_price_is_found_under_drift_and_outliers():
    planted = Planted()
    assert planted.split_price_ms(4, 32, 8) == pytest.approx(FURTHER, rel=0.1)
    steps = [planted.steps[start : start + 11] for start in range(0, 44, 11)]
    assert [{(n, parts) for n, _, parts in block} for block in steps] == [{(8, 1)}, {(4, 2)}, {(4, 2)}, {(8, 1)}]
    lengths = [[length for _, length, _ in block] for block in steps]
    assert lengths == lengths[:1] * 4 and len(set(lengths[0])) > 4 and max(lengths[0]) == 32


class Remembering(Planted):
    """A step of another kind than the one before pays half of what the other kind pays more, and gets half back."""

    def split_ms(self, n: int, length: int, micro_batches: int) -> float:
        before = self.steps[-1][2] if self.steps else micro_batches
        return super().split_ms(n, length, micro_batches) + (before - micro_batches) * FURTHER / 2


def test_what_a_step_leaves_to_the_next_is_no_part_of_the_price():
    assert Remembering().split_price_ms(4, 32, 8) == pytest.approx(FURTHER, rel=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("launcher", "strategy"),
    sampled(
        [("virtual", "ddp"), *(("torchrun", name) for name, entry in STRATEGIES.items() if not entry.servers)],
        [("virtual", "ddp"), *(("torchrun", name) for name in ("ddp", "naive", "bucketed", "zero1", "fsdp", "diloco"))],
    ),
)
def test_a_split_step_is_one_of_as_many_micro_batches_under_the_runs_synchronisation(launcher, strategy, monkeypatch):
    workload = ("name=causal_lm", "size=tiny", "dropout=0.0", "subset=64")
    given = (*(f"workload.{each}" for each in workload), f"launch.launcher={launcher}", f"sync.name={strategy}")
    config = resolved(*given, "train.global_batch=8").config
    build = partial(build_strategy, config, CPU)
    with closing(TrialStep(config, build_workload(config), CPU, build=build)) as step:
        parts, replica = [], step._replica
        compute = replica.compute

        def seen(batches: Sequence[MicroBatch], scale: Callable[[], float]) -> list[LossPart]:
            parts.append([batch.n for batch in batches])
            assert scale() * sum(batch.weight for batch in batches) == pytest.approx(1)
            return compute(batches, scale)

        monkeypatch.setattr(replica, "compute", seen)
        for micro_batches in (2, 1):
            assert step.split_ms(2, 16, micro_batches) > 0
    assert parts == [[2, 2], [2]]
    assert isinstance(replica.strategy, Local if launcher == "virtual" else STRATEGIES[strategy].load())


Further = Sequence[dict[str, object] | None]


def timed(largest: int, *, slowdown: float = 1.0, further: Further = ({"ms": FURTHER},) * 2) -> tuple[Timings, list]:
    """`time_grid` on two ranks of planted times, up to so many samples, and the shapes that splitting is timed at."""
    tried: list[tuple[int, int]] = []

    def reply(rank: int, request: Mapping[str, Any]) -> Answer:
        if request["op"] == "time":
            return {"ms": [step_ms(request["n"], request["length"])]}
        if request["op"] == "further":
            tried.append((request["n"], request["length"]))
            return further[rank]
        return {"ms": 1.0}

    ranks = FakeChildren(reply)
    points = [(n, length) for n in sorted({1, 2, 4, largest}) if 1 <= n <= largest for length in (32, 64)]
    return time_grid(ranks, ranks, points, 1, 0, lambda text: None, {1: slowdown}, share=12), tried


@pytest.mark.parametrize(("largest", "half"), [(64, 6), (8, 4), (7, 3), (2, 1)])
def test_the_price_is_timed_at_a_ranks_share_as_far_as_it_fits(largest, half):
    timings, tried = timed(largest, slowdown=2.0)
    assert tried == [(half, 32)] * 2
    assert timings.further == [FURTHER, 2 * FURTHER]


def test_the_price_reaches_the_cost_model_at_the_fastest_ranks_speed():
    timings, _ = timed(8, slowdown=2.0)
    speeds = np.array([1.0, 0.5])
    further_ms = further_at_full_speed(timings.further, speeds)
    fit = fit_cost(at_full_speed(timings.points, speeds), 0, 0.001, further_ms)
    assert (fit.alpha_ms, fit.further_ms) == pytest.approx((ALPHA, FURTHER))
    assert further_at_full_speed([3.0, 5.0], None) == 4
    assert further_at_full_speed([-0.5, -0.5], None) == 0


@pytest.mark.parametrize("largest", [0, 1])
def test_where_too_little_fits_the_price_is_unknown(largest):
    timings, tried = timed(largest)
    assert timings.further is None and not tried
    assert further_at_full_speed(timings.further, np.array([1.0, 0.5])) is None


@pytest.mark.parametrize("replies", [(None, None), (None, {"ms": FURTHER}), ({"ms": FURTHER}, None)])
def test_where_a_rank_ends_while_splitting_is_timed_the_probe_goes_on_without_the_price(replies, caplog):
    timings, _ = timed(8, further=replies)
    assert timings.further is None
    assert len(timings.points) == 16
    assert "a further micro-batch costs is unknown" in caplog.text


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
def test_plans_use_the_price_of_the_probe_or_of_the_configuration(tmp_path, stored, overrides, surcharge):
    stored_probe(tmp_path, **stored)
    config = load_config(None, ["probe.run=p", *overrides])
    assert build_cost(config, 1, tmp_path).surcharge == surcharge


def test_a_fit_that_tells_no_plans_apart_is_refused(tmp_path):
    stored_probe(tmp_path, beta_ms_per_token=0.0)
    with pytest.raises(UsageError, match=r"probe\.run: 'p' found the same step time at every length"):
        build_cost(load_config(None, ["probe.run=p"]), 1, tmp_path)
