"""The waterfall: its steps lead from the baseline's bar to the candidate's, and its texts cover nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import matplotlib
import pytest

from dynbench.analysis.arms import named_arms
from dynbench.analysis.figures import charts, draw_figure
from dynbench.analysis.figures.steps import MOST_PANELS
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.waste import PARTS, share_ideal, waste_of
from dynbench.runs.run import Run

Make = Callable[..., Run]

ARMS: dict[str, dict[str, object]] = {
    "static": {},
    "partition": {"policy": "partition"},
    "costly": {"transfer_ms": 9.0},
    "partition (workload.layout=packed, sync.name=zero1)": {"policy": "partition", "transfer_ms": 0.2},
    "slow": {"slowdown": 1.4},
    "cheap": {"compute_ms_per_token": 0.03},
}


def views(make_run: Make, number: int) -> list[ArmView]:
    return shared(
        {
            label: [merge_run(make_run(world_size=4, seed=seed, **ARMS[label])) for seed in range(2)]
            for label in list(ARMS)[:number]
        }
    )


def shared(runs: dict[str, list[MergedRun]]) -> list[ArmView]:
    summaries = {run.run.id: {"waste": waste_of(run)} for of_arm in runs.values() for run in of_arm}
    return [ArmView(arm.label, arm.runs) for arm in share_ideal(named_arms(runs), summaries)]


def drawn(arms: list[ArmView]) -> charts.Drawing | None:
    with matplotlib.rc_context(charts.RC):
        return draw_figure("train", "waterfall", arms)


@pytest.mark.slow
def test_the_steps_lead_from_the_baseline_to_the_candidate(make_run: Make) -> None:
    arms = views(make_run, 3)
    table = drawn(arms).table
    for arm in arms:
        rows = {row["part"]: row for row in table.filter(arm=arm.label).iter_rows(named=True)}
        measured = [1000 * run.time_ms / run.measured["real_tokens"].sum() for run in arm.runs]
        assert rows["total"]["ms"] == pytest.approx(sum(measured) / 2)
        parts = [rows[part] for part in ("ideal", *PARTS)]
        for column in ("ms", "change_ms"):
            assert sum(row[column] for row in parts) == pytest.approx(rows["total"][column], abs=1e-9)
    assert set(table.filter(arm="static")["change_ms"]) == {0.0}
    assert table.filter(arm="partition", part="waiting")["change_ms"][0] < 0
    assert table.filter(arm="costly", part="exposed_comm")["change_ms"][0] > 0


@pytest.mark.slow
def test_compression_has_its_part_of_what_is_exposed(make_run: Make) -> None:
    """Three quarters of what the arm takes to communicate and compress is compression."""
    spent = {"comm_ms": 1.0, "compresses": 1, "compress_ms": 2.0, "decompress_ms": 1.0}
    as_it_is, compressed = make_run(transfer_ms=2.0, noise=0.0), make_run(transfer_ms=4.0, noise=0.0, extra=spent)
    arms = shared({"as it is": [merge_run(as_it_is)], "compressed": [merge_run(compressed)]})
    found = drawn(arms)
    assert found is not None
    rows = {row["part"]: row for row in found.table.filter(arm="compressed").iter_rows(named=True)}
    assert rows["compression"]["ms"] == pytest.approx(3 * rows["exposed_comm"]["ms"])
    assert rows["compression"]["change_ms"] == rows["compression"]["ms"] > 0 > rows["exposed_comm"]["change_ms"]
    changes = [row["change_ms"] for part, row in rows.items() if part != "total"]
    assert sum(changes) == pytest.approx(rows["total"]["change_ms"], abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, len(ARMS)])
def test_no_text_covers_another_or_leaves_the_figure(make_run: Make, number: int) -> None:
    with matplotlib.rc_context(charts.RC):
        drawing = draw_figure("train", "waterfall", views(make_run, number))
        figure = drawing.figure
        figure.draw_without_rendering()
        panels = [axes for axes in figure.axes if axes.get_visible()]
        assert len(panels) == min(number - 1, MOST_PANELS)
        for axes in panels:
            texts = [*axes.texts, *axes.get_yticklabels(), axes.title]
            boxes = [text.get_window_extent() for text in texts if text.get_text()]
            assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
            assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    totals = drawing.table.filter(part="total")["ms"].to_list()
    assert len(totals) == 1 + len(panels)
    assert totals[1:] == sorted(totals[1:])


def test_it_is_drawn_only_where_there_is_something_to_hold_against_each_other(make_run: Make) -> None:
    alone = views(make_run, 1)
    unknown = ArmView("short", (merge_run(make_run(steps_written=5, status="interrupted")),))

    assert drawn(alone) is None
    assert drawn([*alone, unknown]) is None
    assert drawn([unknown, *alone]) is None
