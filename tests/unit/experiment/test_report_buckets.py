"""What a report says of the size of buckets: a best one only where the model explains the overheads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from languages import english_words

from dynbench.analysis.questions import question_named
from dynbench.analysis.record import ComparisonRecord, PairRecord
from dynbench.experiment.report_communication import buckets_of
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.report import LANGUAGES, load_template, substitute
from dynbench.runs.run import Run

TOTAL, CALLS = 100e6, (1, 4, 10, 50, 160)
GOOD = tuple(calls * 0.5 + TOTAL / calls / 1e6 for calls in CALLS)


def subject(folder: Path, overheads: tuple[float, ...], compute: float = 50.0) -> ReportInput:
    arms = {}
    for calls, overhead in zip(CALLS, overheads, strict=True):
        times = {"step_time_ms": 300 + overhead, "exposed_vs_null_ms": overhead, "exposed_comm_ms": overhead}
        means = {"collectives": calls, "bytes_raw": TOTAL, "comm_transfer_ms": 50.0, **times}
        summary = {
            "workers": 2,
            "time_ms": {"compute": compute},
            **{key: {"mean": each} for key, each in means.items()},
        }
        arms[f"n{calls}"] = [Member("", "", summary, None, {"sync.name": "ddp", "sync.bucket_mb": 100 / calls})]
    return ReportInput(Run(folder), arms, question=question_named("sync"))


@pytest.mark.parametrize(
    ("compute", "overheads", "case"),
    [
        (50.0, GOOD, "best"),
        (50.0, (30.0, 5.0, 60.0, 4.0, 45.0), "poor"),
        (50.0, (9.0,) * 5, "alike_overheads"),
        (200.0, GOOD, "computing"),
        (10.0, GOOD, "sending"),
        (50.0, (3.0, 4.0, 5.5, 25.0, 80.0), "contradicted"),
    ],
)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_best_size_is_named_only_where_the_model_explains_and_the_arms_bear_it_out(
    tmp_path: Path, compute: float, overheads: tuple[float, ...], case: str, language: str
) -> None:
    """Not where computing is not as long as sending, nor where one bucket beats the four nearest to the best size."""
    found = buckets_of(subject(tmp_path, overheads, compute))
    assert found is not None and found.case == case and (found.case == "best") <= found.fit.explains
    text = substitute(load_template(language), "{{ say.buckets }}", {"buckets": found})
    assert f"`{found.least.arm}`" in text and "{{" not in text and ("b\\*" in text) == (case == "best")
    assert ("GB/s" in text) == found.fit.explains
    if language != "en":
        assert english_words(text, ("MiB", "GB/s")) == []


def test_the_best_size_is_that_of_the_model(tmp_path: Path) -> None:
    found = buckets_of(subject(tmp_path, GOOD))
    assert found is not None and found.near is not None and found.fit.r_squared == pytest.approx(1)
    assert (found.fit.total, found.fit.call_ms, found.fit.bytes_per_ms) == pytest.approx((TOTAL, 0.5, 1e6))
    assert found.fit.best_bytes == pytest.approx((TOTAL * 0.5 * 1e6) ** 0.5)
    assert found.near.arm == "n10" and found.near_ms == pytest.approx(found.near.overhead_ms)


def test_arms_that_launches_do_not_tell_from_the_fastest_are_named(tmp_path: Path) -> None:
    """Of the arms, `n10` is fastest; it is told from the baseline `n1`, and from `n160`."""
    judged = {"reason": "", "level": "step", "speedup": 1.1, "ci95": None, "launches": 2, "same_work": True}
    told = [
        ComparisonRecord(baseline="n1", candidate=name, verdict=verdict, **judged)  # type: ignore[arg-type]  # as read
        for name, verdict in (("n10", "FASTER"), ("n4", "AMBIGUOUS"))
    ]
    pair = PairRecord(baseline="n10", candidate="n160", verdict="SLOWER", **judged)  # type: ignore[arg-type]  # as read
    found = buckets_of(replace(subject(tmp_path, GOOD), comparisons=told, pairs=[pair]))
    assert found is not None and found.untold == ["n4", "n50"]
