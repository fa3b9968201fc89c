"""Arms that computed the same samples share one ideal: the slower is never the nearer to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.arms import Arm, named_arms
from dynbench.analysis.merge import merge_run
from dynbench.analysis.waste import PARTS, share_ideal, waste_of
from dynbench.config.schema import Analysis
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Make = Callable[..., Run]

SLOWER = {"policy": "partition", "compute_ms_per_token": 0.08}
"""Deals better than static, and computes each token in 1.6 times its time."""
OTHER_SAMPLES = {"policy": "partition", "steps": 30}


def arms(make_run: Make, **of_arm: dict[str, object]) -> list[Arm]:
    seeds = range(2)
    found = named_arms(
        {name: [merge_run(make_run(seed=seed, **fields)) for seed in seeds] for name, fields in of_arm.items()}
    )
    return share_ideal(found, {run.run.id: {"waste": waste_of(run)} for arm in found for run in arm.runs})


def times(arm: Arm) -> list[float]:
    return [waste_of(run)["s"] for run in arm.runs]


def per_token(arm: Arm) -> list[float]:
    return [run.time_ms / run.measured["real_tokens"].sum() for run in arm.runs]


def test_who_is_slower_is_further_from_the_ideal_by_as_much(make_run: Make) -> None:
    static, slower = arms(make_run, static={}, slower=SLOWER)
    alone = [waste_of(merge_run(run.run))["s"] for run in slower.runs]

    assert max(alone) < min(times(static)), "by its own ideal the slower arm is the better one"
    ratios = [s / ms for arm in (static, slower) for s, ms in zip(times(arm), per_token(arm), strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 4)


def test_slower_compute_is_a_part_of_its_own_and_the_parts_add_up(make_run: Make) -> None:
    static, slower = arms(make_run, static={}, slower=SLOWER)
    for run in (*static.runs, *slower.runs):
        waste = waste_of(run)
        assert sum(waste[part] for part in PARTS) == pytest.approx(1 - 1 / waste["s"])
    assert all(abs(waste_of(run)["compute"]) < 0.01 for run in static.runs)
    assert all(waste_of(run)["compute"] > 0.1 for run in slower.runs)


@pytest.mark.parametrize(
    "other",
    [
        OTHER_SAMPLES,
        {"world_size": 4},
        {"slow": {1: 2.0}, "overrides": ("launch.slowdown={1: 2.0}",)},
        {"overrides": ("sync.name=local_sgd",)},
    ],
)
def test_arms_of_other_work_share_no_ideal_and_keep_their_parts(make_run: Make, other: dict[str, object]) -> None:
    two = arms(make_run, static={}, other=other)
    three = arms(make_run, static={}, partition={"policy": "partition"}, other=other)

    for run in (run for arm in (*two, three[2]) for run in arm.runs):
        waste = waste_of(run)
        assert (waste["s"], waste["compute"]) == (None, None)
        assert waste["reason_said"]["say"] == "waste.not_shared"
        assert waste["padding"] == waste_of(merge_run(run.run))["padding"]
    assert None not in (*times(three[0]), *times(three[1]))


def test_an_arm_without_an_ideal_of_its_own_gives_none(make_run: Make) -> None:
    static, partition = arms(make_run, static={"steps": 1, "warmup_steps": 0}, partition={"policy": "partition"})
    assert {waste_of(run)["s"] for arm in (static, partition) for run in arm.runs} == {None}


def test_a_run_by_itself_has_its_own(make_run: Make) -> None:
    (alone,) = arms(make_run, static={})
    assert all(run.ideal_ms is None for run in alone.runs)
    assert {waste_of(run)["compute"] for run in alone.runs} == {0.0}


@pytest.mark.slow
def test_a_comparison_shows_the_shared_ideal_everywhere(make_run: Make, store: RunStore) -> None:
    runs = [make_run("static"), make_run(**SLOWER)]
    report = analyze_runs(runs, store, Analysis())
    static, slower = (report.record().as_dict()["runs"][place]["summary"]["waste"] for place in (0, 1))
    assert slower["s"] / static["s"] == pytest.approx(per_token(report.arms[1])[0] / per_token(report.arms[0])[0])
    page = (report.folder.path / "summary.md").read_text()
    assert "slower compute" in page
    assert f"{slower['s']:.2f}" in page
