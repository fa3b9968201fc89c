"""Mean and standard deviation of an arm over its launches, and what says that a link was emulated."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from dynbench.analysis.analyze import Report, analyze_runs
from dynbench.analysis.figures.views import ArmView, caption
from dynbench.analysis.page import rank_notes, verdict_lines
from dynbench.analysis.record import MeanRecord
from dynbench.analysis.results_csv import BY_ARM_FILE, by_arm_csv, over_launches
from dynbench.analysis.summary import summarise
from dynbench.analysis.table_specs import TABLES
from dynbench.config.schema import Analysis
from dynbench.report import load_template
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Make = Callable[..., Run]


def launch(perplexity: float | None, reached_s: float | None = None, compression: object = None) -> dict[str, Any]:
    return {"record": {"val_ppl": perplexity, "time_to_target_ppl_s": reached_s}, "compression": compression}


ARMS = {
    "none": [launch(10.0, 3.0), launch(12.0, 5.0), launch(14.0)],
    "topk": [launch(11.0, compression={}), launch(11.0, compression={"density": 0.01}), launch(float("nan"))],
}


def test_what_a_launch_does_not_have_is_left_out_and_counted() -> None:
    found = over_launches(ARMS["none"])
    assert found == {
        "val_ppl": MeanRecord(mean=12.0, sd=2.0, launches=3),
        "time_to_target_ppl_s": MeanRecord(mean=4.0, sd=2**0.5, launches=2),
    }
    assert over_launches(ARMS["none"][:1])["val_ppl"].sd is None
    assert over_launches(ARMS["topk"])["val_ppl"].launches == 2, "what is no number has no mean"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_has_the_spread_of_every_arm(language: str) -> None:
    label = load_template(language).label
    table = TABLES["spread"].table(ARMS, label)
    assert table is not None
    assert table.rows == [["none", "12.000 ± 2.000", "4.000 ± 1.414 (2/3)"], ["topk", "11.000 ± 0.000 (2/3)", ""]]
    assert TABLES["spread"].table({name: launches[:2] for name, launches in ARMS.items()}, label) is None, (
        "too few launches"
    )
    assert TABLES["spread"].table({"none": ARMS["none"]}, label) is None, "nothing is compressed, no target asked for"


def test_the_file_has_a_row_per_arm_and_column() -> None:
    rows = pl.read_csv(io.StringIO(by_arm_csv(ARMS)))
    assert rows.select("arm", "column").rows() == [
        ("none", "val_ppl"),
        ("none", "time_to_target_ppl_s"),
        ("topk", "val_ppl"),
    ]
    assert rows["sd"].to_list() == pytest.approx([2.0, 2**0.5, 0.0])


@pytest.fixture
def emulated(make_run: Make, store: RunStore) -> Report:
    link = "launch.link_gbps=2.5"
    runs = [make_run(policy, overrides=(link,)) for policy in ("static", "partition")]
    return analyze_runs(runs, store, Analysis())


def test_every_place_says_that_a_link_was_emulated(emulated: Report, make_run: Make) -> None:
    """A page, a verdict, a caption, a run's own summary and line."""
    said = "2.5 Gb/s"
    assert any(said in note and "emulated" in note for note in rank_notes(emulated))
    assert all("emulated link" in line for line in verdict_lines(emulated.comparisons))
    drawn = [ArmView(arm.label, arm.runs) for arm in emulated.arms]
    assert f"emulated link of {said}" in caption(drawn, "")
    for run in emulated.runs:
        summary = emulated.summaries[run.run.id]
        assert summary["link_gbps"] == 2.5 and said in (run.run.path / "summary.md").read_text()
        assert isinstance(summary["record"], dict) and summary["record"]["link_gbps"] == 2.5
    assert said in (emulated.folder.path / "summary.md").read_text()
    assert (emulated.folder.path / BY_ARM_FILE).is_file()
    real = summarise(make_run("static"))
    assert real["link_gbps"] is None
