"""Strategies scaled against themselves, strongly and weakly, servers among their ranks, and ranks that share cores."""

from __future__ import annotations

import json
from collections.abc import Callable

import polars as pl
import pytest

from dynbench.analysis.analyze import analyze_runs
from dynbench.analysis.comparison_tables import SCALING, ranks_text
from dynbench.analysis.figures import draw_figure
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.analysis.page import summary_markdown
from dynbench.analysis.record import ScalingRecord
from dynbench.config.schema import Analysis
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Make = Callable[..., Run]
NAIVE, FLAT, PS = ("sync.name=naive",), ("sync.name=flat",), ("sync.name=ps",)
CROWDED = {"env": {"cpu_cores": {"present": 2, "usable": 2, "quota": None}}}


@pytest.fixture
def arms(make_run: Make) -> dict[str, list[Run]]:
    """Two strategies over one, two and four ranks that train, and a server with one and two workers."""

    def launches(ranks: int, how: tuple[str, ...], **fields: object) -> list[Run]:
        made = {"world_size": ranks, "overrides": how, "noise": 0.0, **fields}
        return [make_run("static", seed=seed, **made) for seed in range(2)]

    return {
        "naive_1": launches(1, NAIVE),
        "naive_2": launches(2, NAIVE),
        "naive_4": launches(4, NAIVE, **CROWDED),
        "naive_2_weak": launches(2, NAIVE, global_batch=32),
        "flat_2": launches(2, FLAT, slowdown=0.5),
        "flat_4": launches(4, FLAT, slowdown=0.5),
        "ps_1": launches(1, PS, servers=1),
        "ps_2": launches(2, PS, servers=1),
    }


@pytest.mark.slow
def test_each_strategy_is_scaled_against_its_own_fewest_ranks(arms: dict[str, list[Run]], store: RunStore) -> None:
    report = analyze_runs((), store, Analysis(), arms=arms, question="topology")
    found = {one.arm: one for one in report.scaling}
    assert {name: (one.kind, one.against) for name, one in found.items()} == {
        "naive_1": ("reference", "naive_1"),
        "naive_2": ("strong", "naive_1"),
        "naive_4": ("strong", "naive_1"),
        "naive_2_weak": ("weak", "naive_1"),
        "flat_2": ("reference", "flat_2"),
        "flat_4": ("strong", "flat_2"),
        "ps_1": ("reference", "ps_1"),
        "ps_2": ("strong", "ps_1"),
    }
    for one in found.values():
        fewer = found[one.against]
        assert one.efficiency == pytest.approx(one.speedup * fewer.workers / one.workers)
        assert one.efficiency_of_ranks == pytest.approx(one.speedup * fewer.world_size / one.world_size)
        assert one.units_per_s / fewer.units_per_s == pytest.approx(one.speedup, rel=0.02)
    assert (found["ps_2"].workers, found["ps_2"].world_size) == (2, 3)
    assert found["ps_2"].efficiency_of_ranks > found["ps_2"].efficiency, "a server is shared by more workers"
    by_candidate = {item.candidate.label: item.efficiency for item in report.comparisons}
    assert by_candidate == {name: pytest.approx(found[name].efficiency) for name in by_candidate}
    assert json.loads((report.folder.path / "comparison.json").read_text())["scaling"][0]["arm"] == "naive_1"


@pytest.mark.slow
def test_ranks_that_share_cores_are_marked_wherever_they_stand(arms: dict[str, list[Run]], store: RunStore) -> None:
    """Four ranks on two cores: in the record, the tables, the page, the summary, and the figure with its numbers."""
    report = analyze_runs((), store, Analysis(), arms=arms, question="topology")
    assert [one.arm for one in report.scaling if one.oversubscribed] == ["naive_4"]
    table = SCALING.table(report.scaling)
    assert table is not None and [row[1] for row in table.rows if row[0] == "naive_4"] == ["4 (oversubscribed)"]
    page = summary_markdown(report)
    assert "Oversubscribed: naive_4 has 4 ranks of 1 thread each on 2 cores" in page
    assert {name for name in arms if report.summaries[arms[name][0].id]["oversubscribed"]} == {"naive_4"}
    drawn = pl.read_csv(report.folder.figures_dir / "scaling.csv")
    assert drawn.filter("oversubscribed")["arm"].to_list() == ["naive_4"]
    assert drawn["kind"].to_list().count("weak") == 1


def test_ranks_that_serve_are_counted_beside_those_that_train() -> None:
    assert [ranks_text(2, 2, False), ranks_text(2, 3, None), ranks_text(3, 4, True)] == [
        "2",
        "2 of 3",
        "3 of 4 (oversubscribed)",
    ]


def test_arms_of_as_many_workers_have_no_scaling(make_run: Make, store: RunStore) -> None:
    arms = {name: [make_run("static", overrides=how)] for name, how in (("naive", NAIVE), ("flat", FLAT))}
    report = analyze_runs((), store, Analysis(), arms=arms)
    assert report.scaling == () and SCALING.table(report.scaling) is None
    views = [ArmView(name, tuple(merge_run(run) for run in runs)) for name, runs in arms.items()]
    assert draw_figure("train", "scaling", views) is None


def test_a_batch_that_neither_stays_nor_grows_with_the_ranks_has_no_place_in_the_table() -> None:
    """Of forced comparisons; the record of what is left out is that of `forced_comparison`."""
    assert SCALING.table([]) is None
    record = ScalingRecord(
        arm="a", strategy="ddp", kind="reference", against="a", workers=1, world_size=1, global_batch=8,
        units_per_s=1.0, speedup=1.0, efficiency=1.0, efficiency_of_ranks=1.0,
    )  # fmt: skip
    table = SCALING.table([record])
    assert table is not None and table.rows[0][:4] == ["a", "1", "ddp", "reference"]
