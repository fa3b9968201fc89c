"""What a report says of the size of buckets: a best one only where the model explains the overheads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from languages import english_words

from dynbench.analysis.buckets import EXPLAINS, fit_buckets
from dynbench.analysis.questions import question_named
from dynbench.analysis.record import ComparisonRecord, PairRecord
from dynbench.experiment.answers import Speaker
from dynbench.experiment.bucket_answers import bucket_sentences, points_of
from dynbench.experiment.formats import number
from dynbench.experiment.subject import Member, Subject
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.run import Run
from dynbench.units import mib

TOTAL, CALLS = 100e6, (1, 4, 10, 50, 160)
GOOD = tuple(calls * 0.5 + TOTAL / calls / 1e6 for calls in CALLS)


def subject(folder: Path, overheads: tuple[float, ...], compute: float = 50.0) -> Subject:
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
    return Subject(Run(folder), arms, question=question_named("sync"))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("overheads", "case"), [(GOOD, None), ((30.0, 5.0, 60.0, 4.0, 45.0), "poor"), ((9.0,) * 5, "alike_overheads")]
)
def test_below_a_stated_fit_no_best_size_is_named(
    tmp_path: Path, overheads: tuple[float, ...], case: str | None, language: str
) -> None:
    found = subject(tmp_path, overheads)
    fit, template = fit_buckets(points_of(found)), load_template(language)
    assert fit is not None
    text = bucket_sentences(Speaker(found, template, {}))
    assert "n1" in text and "{{" not in text
    if case is None:
        assert fit.best_bytes is not None and f"{number(mib(fit.best_bytes))} MiB" in text
        assert "R² = 1.00" in text
        return
    assert "MiB" not in text and "GB/s" not in text
    assert template.label(f"answers.buckets.{case}").partition("{{")[0].strip() in text
    if case == "poor":
        assert f"R² = {fit.r_squared:.2f}" in text and f"{EXPLAINS:g}" in text
    if language != "en":
        assert english_words(text) == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("compute", "overheads", "case"),
    [(200.0, GOOD, "computing"), (10.0, GOOD, "sending"), (50.0, (3.0, 4.0, 5.5, 25.0, 80.0), "contradicted")],
)
def test_no_best_size_is_named_where_the_arms_do_not_bear_the_model_out(
    tmp_path: Path, compute: float, overheads: tuple[float, ...], case: str, language: str
) -> None:
    """Computing is not as long as sending, or one bucket has less overhead than the four nearest to the best size."""
    found = subject(tmp_path, overheads, compute)
    fit, template = fit_buckets(points_of(found)), load_template(language)
    assert fit is not None and fit.best_bytes is not None and fit.explains
    text = bucket_sentences(Speaker(found, template, {}))
    assert template.label(f"answers.buckets.{case}").partition("{{")[0].strip() in text
    assert template.label("answers.buckets.best").partition("{{")[0].strip() not in text
    if language != "en":
        assert english_words(text, ("MiB",)) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_arms_that_launches_do_not_tell_from_the_fastest_are_named(tmp_path: Path, language: str) -> None:
    """Of the arms, `n10` is fastest; it is told from the baseline `n1`, and from `n160`."""
    judged = {"reason": "", "level": "step", "speedup": 1.1, "ci95": None, "launches": 2, "same_work": True}
    told = [
        ComparisonRecord(baseline="n1", candidate=name, verdict=verdict, **judged)  # type: ignore[arg-type]  # as read
        for name, verdict in (("n10", "FASTER"), ("n4", "AMBIGUOUS"))
    ]
    pair = PairRecord(baseline="n10", candidate="n160", verdict="SLOWER", **judged)  # type: ignore[arg-type]  # as read
    found = replace(subject(tmp_path, GOOD), comparisons=told, pairs=[pair])
    text = bucket_sentences(Speaker(found, load_template(language), {})).partition("\n\n")[0]
    assert "`n4`, `n50`" in text and "`n160`" not in text
