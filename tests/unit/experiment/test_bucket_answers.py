"""What a report says of the size of buckets: a best one only where the model explains the overheads."""

from __future__ import annotations

from pathlib import Path

import pytest
from languages import english_words

from dynbench.analysis.buckets import EXPLAINS, fit_buckets
from dynbench.analysis.questions import question_named
from dynbench.experiment.answers import Speaker
from dynbench.experiment.bucket_answers import bucket_sentences, points_of
from dynbench.experiment.formats import number
from dynbench.experiment.subject import Member, Subject
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.run import Run
from dynbench.units import mib

TOTAL, CALLS = 100e6, (1, 4, 10, 50, 160)
GOOD = tuple(calls * 0.5 + TOTAL / calls / 1e6 for calls in CALLS)


def subject(folder: Path, overheads: tuple[float, ...]) -> Subject:
    arms = {}
    for calls, overhead in zip(CALLS, overheads, strict=True):
        times = {"step_time_ms": 300 + overhead, "exposed_vs_null_ms": overhead, "exposed_comm_ms": overhead}
        means = {"collectives": calls, "bytes_raw": TOTAL, "comm_transfer_ms": 50.0, **times}
        summary = {"workers": 2, "time_ms": {"compute": 200.0}, **{key: {"mean": each} for key, each in means.items()}}
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
