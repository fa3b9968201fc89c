import json
import math

import numpy as np
import pytest

from dynbench.analysis.comparison_tables import metric_tables
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import METRICS, improvement_percent, improvements, means
from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summarise, summary_of
from dynbench.analysis.tables import summary_rows
from dynbench.table_text import format_gain, format_value

NUMBERS = """
    world_size global_batch steps warmup_steps rows skipped_steps padding_ratio wait_fraction plan_fraction samples
    real_tokens step_time_ms.mean step_time_ms.p50 step_time_ms.p95 step_time_ms.total exposed_comm_ms.mean
    throughput_samples_per_s.mean throughput_samples_per_s.p95 throughput_tokens_per_s.mean throughput_tokens_per_s.p95
    padded_tokens_max.mean padded_tokens_max.total std_over_ranks.compute_ms.mean std_over_ranks.compute_ms.p95
    std_over_ranks.step_time_ms.mean std_over_ranks.padded_tokens.p95 std_over_ranks.peak_mem_mb.mean
    loss.first loss.last eval.loss eval.accuracy
"""


def test_every_number_of_the_json_page_is_there(make_run):
    summary = summarise(make_run("partition"))
    assert [key for key in NUMBERS.split() if lookup(summary, key) is None] == []
    assert (summary["policy"], summary["mode"], summary["launcher"]) == ("partition", "dynamic", "torchrun")
    assert (summary["partial"], summary["missing"]) == (False, [])


def test_statistics_leave_the_warm_up_out_and_use_ratios_of_totals(make_run):
    run = make_run("static")
    merged = merge_run(run)
    summary = summary_of(merged)
    times = merged.steps["step_time_max_ms"].to_numpy()[10:]
    tokens = merged.steps["real_tokens"].to_numpy()[10:]
    assert (summary["steps"], summary["warmup_steps"], summary["rows"]) == (40, 10, 100)
    assert lookup(summary, "step_time_ms.p95") == pytest.approx(np.percentile(times, 95))
    assert lookup(summary, "throughput_tokens_per_s.mean") == pytest.approx(tokens.sum() / times.sum() * 1000)
    assert lookup(summary, "throughput_tokens_per_s.mean") != pytest.approx(np.mean(tokens / times) * 1000)
    assert lookup(summary, "wait_fraction") == pytest.approx(
        merged.steps["wait_ms_mean"].to_numpy()[10:].sum() / times.sum()
    )
    assert summary["samples"] == 40 * 16


def test_files_say_the_same_as_the_object(make_run):
    run = make_run("static", name="plain")
    summary = summarise(run)
    assert json.loads((run.path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    text = (run.path / "summary.md").read_text()
    assert text.startswith("# plain\n")
    assert "Warm-up left out" in text
    header, *lines = (run.path / "summary.csv").read_text().splitlines()
    assert header == "metric,title,unit,plain"
    assert any(line.startswith("wait_fraction,") for line in lines)


def test_a_partial_run_says_so(make_run):
    run = make_run("static", status="failed", steps_written=25)
    summary = summarise(run)
    assert summary["partial"] is True
    assert summary["missing"] == ["status is failed", "15 of 40 measured steps"]
    assert "**Partial run:** status is failed" in (run.path / "summary.md").read_text()


def test_a_run_with_warm_up_only_has_no_numbers(make_run):
    summary = summarise(make_run("static", status="interrupted", steps_written=5))
    assert summary["steps"] == 0
    assert lookup(summary, "step_time_ms.mean") is None
    assert lookup(summary, "throughput_tokens_per_s.mean") is None


def test_compressed_runs_report_what_travelled(make_run):
    sent = {"comm_ms": 2.5, "bytes_raw": 4000, "bytes_wire": 1000}
    summary = summarise(make_run("static", extra=sent | {"gradient_bytes_raw": 2000, "gradient_bytes_wire": 500}))
    assert summary["compression_ratio"] == 4, "of the exchange of gradients"
    assert summary["traffic_compression_ratio"] == 2.5, "what is no gradient travels as it is"
    assert lookup(summary, "bytes_wire.mean") == 1000
    assert "compression_ratio" not in summarise(make_run("static"))


def test_improvement_counts_in_the_metrics_better_direction():
    by_key = {metric.key: metric for metric in METRICS}
    assert improvement_percent(by_key["step_time_ms.mean"], 20, 15) == pytest.approx(25)
    assert improvement_percent(by_key["throughput_tokens_per_s.mean"], 100, 125) == pytest.approx(25)
    assert improvement_percent(by_key["wait_fraction"], 0.0, 0.1) is None
    assert improvement_percent(by_key["eval.loss"], None, 0.1) is None


def test_the_loss_of_the_last_step_has_no_better_direction():
    last = next(metric for metric in METRICS if metric.key == "loss.last")
    assert improvement_percent(last, 0.4, 0.3) is None


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_improvement(broken):
    evaluation = next(metric for metric in METRICS if metric.key == "eval.loss")
    gains = [improvement_percent(evaluation, *pair) for pair in ((broken, 0.1), (0.1, broken), (broken, broken))]
    assert [format_gain(gain) for gain in gains] == ["", "", ""]


def test_steps_of_other_batches_are_not_told_to_be_better_or_worse():
    """Steps of four times the samples took "183.5 % longer" in an arm 1.4 times as fast."""
    whole = {metric.key: 2.0 for metric in METRICS}
    before, equal, larger = ({**whole, "global_batch": size} for size in (32, 32, 128))
    kept = set(improvements([before], [equal]))
    withheld = kept - set(improvements([before], [larger]))
    assert withheld == {metric.key for metric in METRICS if metric.of == "step"} <= kept
    assert "step_time_ms.p95" in withheld and "throughput_tokens_per_s.mean" not in withheld


def test_gains_of_a_time_and_of_its_rate_agree_however_much_launches_differ():
    """A compressor was 8.6 % better by its step times and 1.8 % worse by its throughput."""

    def launches(*ms):
        keys = ("step_time_ms.mean", "throughput_tokens_per_s.mean", "exposed_comm_ms.mean")
        return [
            dict(zip(keys, (one, 1e6 / one, spare), strict=True)) for one, spare in zip(ms, (0.0, 4.0), strict=True)
        ]

    found = improvements(launches(100.0, 300.0), launches(90.0, 310.0))
    ratio = math.sqrt(100 / 90 * 300 / 310)
    assert found["throughput_tokens_per_s.mean"] == pytest.approx(100 * (ratio - 1))
    assert found["step_time_ms.mean"] == pytest.approx(100 * (1 - 1 / ratio))
    assert found["exposed_comm_ms.mean"] == 0.0, "a launch has none: the ratio of the means"


def test_means_leave_out_metrics_that_one_summary_lacks():
    found = means([{"wait_fraction": 0.1, "padding_ratio": 1.5}, {"wait_fraction": 0.3, "padding_ratio": None}])
    assert found == {"wait_fraction": pytest.approx(0.2)}
    assert lookup(found, "wait_fraction") == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(None, "ms", ""), (0.123, "%", "12.3 %"), (1234.5, "ms", "1,234"), (123.45, "ms", "123.5"), (1.5, "ms", "1.500")],
)
def test_numbers_for_reading(value, unit, text):
    assert format_value(value, unit) == text


def test_a_gain_that_rounds_to_nothing_has_no_sign():
    assert [format_gain(gain) for gain in (None, -0.01, 12.34, -5)] == ["", "0.0 %", "+12.3 %", "-5.0 %"]


def test_markdown_escapes_what_would_break_a_table():
    (table,) = metric_tables({"a|b": {"wait_fraction": 0.5}}, {})
    assert "a\\|b" in table.markdown()


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


def test_what_the_checks_found_outlives_another_summary(make_run, caplog):
    run = make_run("static")
    finding = {"id": "drift", "severity": "warn", "seen": "a", "limit": "b", "hint": "c"}
    summarise(run)
    assert "## Checks" not in (run.path / "summary.md").read_text()
    (run.path / "checks.json").write_text(json.dumps({"checks": [finding]}))
    summarise(run)
    assert "## Checks" in (run.path / "summary.md").read_text()
    assert "| warn | drift | a | b | c |" in (run.path / "summary.md").read_text()
    (run.path / "checks.json").write_text("{")
    summarise(run)
    assert "## Checks" not in (run.path / "summary.md").read_text()
    assert "checks.json: cannot be read" in caplog.text
