"""The figures of compressors show what was measured, and nothing where nothing compresses."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
import polars as pl
import pytest
from compressed_runs import PERPLEXITY, SENT, STEPS, compressed_arms

from dynbench.analysis.figures import FIGURES, charts, draw_figure
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.links import faster_gbps, predicted_ms
from dynbench.analysis.merge import merge_run
from dynbench.analysis.questions import COMPRESS
from dynbench.runs.run import Run

Make = Callable[..., Run]
NAMES = [name for name in FIGURES["train"] if name.startswith("compression")]
MEASURED = {"compression_loss": 2, "compression_curves": 3}
"""Those with what compress.error_every measures, and how many panels they have with it."""


def drawn(name: str, arms: list[ArmView]) -> charts.Drawing:
    with matplotlib.rc_context(charts.RC):
        found = draw_figure("train", name, arms)
        assert found is not None
        found.figure.draw_without_rendering()
    return found


def test_comparisons_of_compressors_show_them_all() -> None:
    assert len(NAMES) == 7 and {*NAMES} <= {*COMPRESS.figures}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drawn_where_nothing_compresses(make_run: Make, name: str) -> None:
    assert draw_figure("train", name, [ArmView("static", (merge_run(make_run()),))]) is None
    assert draw_figure("train", name, []) is None


@pytest.mark.slow
def test_fewer_bytes_stand_beside_what_they_cost(make_run: Make) -> None:
    table = drawn("compression_loss", compressed_arms(make_run)).table
    for row in table.iter_rows(named=True):
        share = SENT[row["arm"]]
        assert (row["compression"], row["sent_mb"]) == pytest.approx((1 / share, share))
        assert row["perplexity"] == PERPLEXITY[row["arm"]][-1]
        assert row["gradient_error"] == (None if row["arm"] == "none" else pytest.approx(0.3))


@pytest.mark.slow
def test_a_step_is_in_its_parts(make_run: Make) -> None:
    table = drawn("compression_step", compressed_arms(make_run)).table
    parts = {(row["arm"], row["part"]): row["ms"] for row in table.iter_rows(named=True)}
    assert [parts["fp8", part] for part in ("compress_ms", "comm_ms", "decompress_ms")] == pytest.approx([2, 1, 1])
    assert [parts["none", part] for part in ("compress_ms", "comm_ms", "decompress_ms")] == pytest.approx([0, 4, 0])
    assert all(parts[arm, "step_time_ms"] > parts[arm, "compute_ms"] > 0 for arm in SENT)


@pytest.mark.slow
def test_slower_links_take_longer_and_fewer_bytes_less_so(make_run: Make) -> None:
    arms = compressed_arms(make_run)
    none = next(arm.summaries for arm in arms if arm.label == "none")
    table = drawn("compression_links", arms).table.sort("arm", "gbps")
    crossing = table.filter("crosses")
    spans = {arm.label: faster_gbps(arm.summaries, none) for arm in arms}
    assert {*crossing["arm"]} == {arm for arm, found in spans.items() for span in found or () if any(span)}
    for arm, gbps, ms in crossing.select("arm", "gbps", "predicted_ms").iter_rows():
        assert predicted_ms(none, gbps) == pytest.approx(ms), arm
    times = {arm: table.filter(pl.col("arm") == arm, ~pl.col("crosses")) for arm in SENT}
    for arm, found in times.items():
        assert found["predicted_ms"].is_sorted(descending=True), arm
        assert found["gbps"].to_list() == pytest.approx(times["none"]["gbps"].to_list())
    slow = {arm: found["predicted_ms"][0] - found["predicted_ms"][-1] for arm, found in times.items()}
    assert all(slow[arm] < slow["none"] for arm, share in SENT.items() if share < 1)


@pytest.mark.slow
def test_evaluations_stand_at_their_time_and_bytes(make_run: Make) -> None:
    arms = compressed_arms(make_run, launches=1)
    table = drawn("compression_progress", arms).table
    for arm in arms:
        rows, steps = table.filter(arm=arm.label), arm.runs[0].steps
        assert rows["perplexity"].to_list() == [*PERPLEXITY[arm.label]]
        assert rows["bytes"].to_list() == pytest.approx([(step + 1) * 1e6 * SENT[arm.label] for step in STEPS])
        spent = [steps.filter(pl.col("step") <= step)["step_time_max_ms"].sum() / 1000 for step in STEPS]
        assert rows["time_s"].to_list() == pytest.approx(spent)


@pytest.mark.slow
def test_bars_span_the_launches(make_run: Make) -> None:
    table = drawn("compression_methods", compressed_arms(make_run)).table
    assert set(table["quantity"]) == {"units_per_s", "communication_share", "perplexity"}
    assert (table["least"] <= table["mean"]).all() and (table["mean"] <= table["most"]).all()
    shares = table.filter(quantity="communication_share").sort("mean")
    assert shares["arm"].to_list() == ["fp8", "none"] and shares["mean"][1] < 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "panels"), MEASURED.items())
def test_what_was_not_measured_has_no_panel(make_run: Make, name: str, panels: int) -> None:
    for measured in (False, True):
        figure = drawn(name, compressed_arms(make_run, launches=1, measured=measured)).figure
        assert len(figure.axes) == panels - (not measured)


@pytest.mark.slow
def test_curves_have_losses_and_residuals(make_run: Make) -> None:
    table = drawn("compression_curves", compressed_arms(make_run)).table
    evaluated = table.filter(arm="fp8", quantity="evaluation loss")
    assert evaluated["step"].to_list() == [*STEPS] and evaluated["value"].to_list() == pytest.approx([1.3, 0.81])
    assert set(table.filter(quantity="residual norm")["value"]) == {5.0}
    assert table.filter(arm="none", quantity="training loss").height == 40
