"""The summary of a run, its measures and line of results.csv, and what it says of data and links."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from unit.analysis.conftest import Make

from dynbench.analysis.evaluations import targets_of
from dynbench.analysis.figures.views import ArmView, caption
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import MEASURES, METRICS, improvement_percent, improvements, means
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.record import MeanRecord
from dynbench.analysis.results_csv import COLUMNS, RESULTS_FILE, over_launches
from dynbench.analysis.run_facts import read_data
from dynbench.analysis.summary import summarise
from dynbench.analysis.tables import metric_tables, summary_rows
from dynbench.config.schema import changed
from dynbench.runs.run import Run


def test_nothing_is_better_by_a_number_that_is_none():
    (loss,) = [metric for metric in METRICS if metric.key == "eval.loss"]
    assert improvement_percent(loss, 0.0, 0.1) is None
    for broken in (None, math.nan, math.inf, -math.inf):
        assert improvement_percent(loss, broken, 0.1) is improvement_percent(loss, 0.1, broken) is None


def test_means_leave_out_metrics_that_one_summary_lacks():
    found = means([{"wait_fraction": 0.1, "padding_ratio": 1.5}, {"wait_fraction": 0.3, "padding_ratio": None}])
    assert found == {"wait_fraction": pytest.approx(0.2)}


def test_summaries_named_like_a_column_of_the_table_are_kept(make_run):
    named = {name: {"wait_fraction": 0.1 * index} for index, name in enumerate(("metric", "title", "unit", "plain"), 1)}
    rows = summary_rows(named, {"unit gains": {"wait_fraction": 5.0}})
    assert rows.columns[3:] == ["run metric", "run title", "run unit", "plain", "unit gains"]
    (table,) = metric_tables({name: named[name] for name in ("metric", "unit")}, {"unit": {"wait_fraction": 5.0}})
    assert table.columns == ["", "metric", "unit", "unit gains"]
    assert table.rows == [["waiting for the slowest rank", "10.0 %", "30.0 %", "+5.0 %"]]
    run = make_run("static", name="unit")
    summarise(run)
    assert (run.path / "summary.csv").read_text().startswith("metric,title,unit,run unit\nstep_time_ms.mean,")


def line_of(run: Run) -> dict[str, Any]:
    record = summarise(run)["record"]
    assert pl.read_csv(run.path / RESULTS_FILE).to_dicts() == [record]
    return record  # type: ignore[return-value]  # a mapping


def test_what_is_not_known_is_empty(make_run: Make) -> None:
    line = line_of(make_run("static"))
    unknown = {name for name, value in line.items() if value is None}
    assert {"comm_ratio", "bytes_raw_total", "compress_time_ms", "grad_cos_sim", "val_ppl", "clipped_steps"} <= unknown
    assert (line["nan_steps"], json.loads(line["comm_time_ms_by_op"])) == (0, {})


def test_steps_left_as_they_are_count_in_no_ratio(make_run: Make) -> None:
    sent = {"hidden_comm_ms": 0.5, "bytes_wire": 1200, "gradient_bytes_raw": 2000, "gradient_bytes_wire": 500}
    line = line_of(make_run("static", extra=sent | {"compresses": 0, "compress_ms": 1.5}))
    assert (line["compression_ratio"], line["compress_time_ms"], line["bytes_raw_total"]) == (None, None, 80_000)


def test_captions_say_that_a_link_was_emulated(make_run: Make) -> None:
    run = merge_run(make_run(overrides=("launch.link_gbps=2.5",)))
    assert "2.5 Gb/s" in caption([ArmView("static", (run,))], "")


def test_every_measure_is_seen_where_people_and_programs_look(make_run: Make) -> None:
    run = make_run()
    summary = summarise(run)
    always = {each.key.partition(".")[0] for each in MEASURES if not (each.needs or each.optional)}
    assert always <= summary.keys()
    known = {metric.key: metric for metric in METRICS if lookup(summary, metric.key) is not None}
    assert {"step_time_ms.mean", "eval.loss"} <= known.keys()
    assert set(pl.read_csv(run.path / "summary.csv")["metric"]) == known.keys()
    page = (run.path / "summary.md").read_text()
    assert [metric.title for metric in known.values() if metric.title not in page] == []
    columns = pl.read_csv(run.path / RESULTS_FILE).columns
    assert columns == [column.key for column in COLUMNS]
    assert {each.column for each in MEASURES if each.column} <= {*columns}


def test_what_is_declared_is_declared_once() -> None:
    for declared in (MEASURES, METRICS, COLUMNS):
        keys = [each.key for each in declared]
        assert len(keys) == len(set(keys))
    assert not any("." in each.needs for each in MEASURES)
    assert [metric.key for metric in METRICS if not metric.title or not metric.heading] == []


def test_what_was_recorded_and_decided_of_the_data_is_told() -> None:
    train, decided = {"samples": 9, "tokens": 75, "cut_samples": 3, "cut_tokens": 25}, {"value": 32}
    data = {"train": train, "labels": {"a": 0, "b": 1}, "decisions": {"workload.max_length": decided}, "eval": None}
    assert list(read_data({"data": data}, 64).lines()) == [
        ("data", "9 samples trained on; none for evaluation"),
        ("cut", "3 training samples to 32 tokens, which removed 25 tokens (25.0% of all)"),
        ("labels", "a=0, b=1"),
    ]
    assert list(read_data({"data": {"fingerprint": "an older version's"}}, 64).lines()) == []


def test_what_a_launch_does_not_have_is_left_out_and_counted() -> None:
    measured = ((10.0, 3.0), (12.0, 5.0), (14.0, None), (math.nan, None))
    records = [dict(zip(("val_ppl", "time_to_target_ppl_s"), values, strict=True)) for values in measured]
    launches = [{"record": record} for record in records]
    assert over_launches(launches) == {
        "val_ppl": MeanRecord(mean=12.0, sd=2.0, launches=3),
        "time_to_target_ppl_s": MeanRecord(mean=4.0, sd=2**0.5, launches=2),
    }
    assert over_launches(launches[:1])["val_ppl"].sd is None


@pytest.fixture
def trained(make_run: Make) -> MergedRun:
    """50 steps, evaluated after every tenth: the perplexity comes below 20 and leaves it again."""
    run = make_run(extra={"bytes_wire": 10}, noise=0.0)
    reached = {9: 90.0, 19: 40.0, 29: 18.0, 39: 20.0, 49: 12.0}
    lines = [f"{step},1.0,{perplexity},100,10\n" for step, perplexity in reached.items()]
    (run.path / "eval.csv").write_text("step,loss,perplexity,tokens,samples\n" + "".join(lines))
    return merge_run(run)


def targets(run: MergedRun, **asked: float) -> Any:
    config = changed(run.facts.config, {f"analysis.{name}": value for name, value in asked.items()})
    return targets_of(replace(run, facts=replace(run.facts, config=config)))


def test_a_target_is_reached_with_the_first_evaluation_at_or_below_it(trained: MergedRun) -> None:
    for asked, steps in ((40.0, 20), (39.9, 30), (18.0, 30), (12.0, 50)):
        found = targets(trained, target_perplexity=asked)
        assert (found["steps_to_target"], found["bytes_to_target"]) == (steps, 10 * steps)
        spent = trained.steps["step_time_max_ms"][:steps].sum() / 1000
        assert found["time_to_target_s"] == pytest.approx(spent), "warm-up among it, evaluation not"
    missed = targets(trained, target_perplexity=11.9)
    assert (missed["steps_to_target"], missed["bytes_to_target"], missed["time_to_target_s"]) == (None, None, None)


def test_at_a_time_stands_the_last_evaluation_within_it(trained: MergedRun) -> None:
    clock = trained.steps["step_time_max_ms"].cum_sum() / 1000
    for seconds, perplexity in ((clock[19] + 1e-6, 40.0), (clock[28], 40.0), (clock[0], None), (clock[49] + 9, None)):
        found = targets(trained, time_budget_s=seconds)
        assert (found["perplexity_at_budget"], found["target_perplexity"]) == (perplexity, None), seconds


def test_a_run_of_which_steps_are_missing_knows_no_time(trained: MergedRun) -> None:
    short = replace(trained, steps=trained.steps.head(45), facts=replace(trained.facts, status="failed"))
    assert targets(short, target_perplexity=12.0)["time_to_target_s"] is None


def test_improvement_counts_in_the_metrics_better_direction():
    by_key = {metric.key: metric for metric in METRICS}
    assert improvement_percent(by_key["step_time_ms.mean"], 20, 15) == pytest.approx(25)
    assert improvement_percent(by_key["throughput_tokens_per_s.mean"], 100, 125) == pytest.approx(25)
    assert improvement_percent(by_key["wait_fraction"], 0.0, 0.1) is None
    for broken in (None, math.nan, math.inf, -math.inf):
        assert improvement_percent(by_key["eval.loss"], broken, 0.1) is None
        assert improvement_percent(by_key["eval.loss"], 0.1, broken) is None


def test_steps_of_other_batches_are_not_told_to_be_better_or_worse():
    """Steps of four times the samples took "183.5 % longer" in an arm 1.4 times as fast."""
    whole = {metric.key: 2.0 for metric in METRICS}
    before, equal, larger = ({**whole, "global_batch": size} for size in (32, 32, 128))
    kept = set(improvements([before], [equal]))
    assert kept == {metric.key for metric in METRICS if metric.better}
    withheld = kept - set(improvements([before], [larger]))
    assert withheld == {metric.key for metric in METRICS if metric.of == "step"} <= kept
    assert "step_time_ms.p95" in withheld and "throughput_tokens_per_s.mean" not in withheld


def test_gains_of_a_time_and_of_its_rate_agree_however_much_launches_differ():
    """A compressor was 8.6 % better by its step times and 1.8 % worse by its throughput."""

    def launches(*ms):
        pairs = zip(ms, (0.0, 4.0), strict=True)
        return [
            {"step_time_ms.mean": one, "throughput_tokens_per_s.mean": 1e6 / one, "exposed_comm_ms.mean": spare}
            for one, spare in pairs
        ]

    found = improvements(launches(100.0, 300.0), launches(90.0, 310.0))
    ratio = math.sqrt(100 / 90 * 300 / 310)
    assert found["throughput_tokens_per_s.mean"] == pytest.approx(100 * (ratio - 1))
    assert found["step_time_ms.mean"] == pytest.approx(100 * (1 - 1 / ratio))
    assert found["exposed_comm_ms.mean"] == 0.0, "a launch has none: the ratio of the means"
