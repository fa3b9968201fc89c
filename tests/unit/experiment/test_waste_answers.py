"""What a report says of the time beyond the ideal, in both languages and every outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import english_words

from dynbench.analysis.waste import PARTS
from dynbench.experiment.answers import Speaker
from dynbench.experiment.reporting import render_report
from dynbench.experiment.subject import find_subject
from dynbench.experiment.waste_answers import waste_sentences, wasted, waterfall_sentence
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]

KNOWN = {
    "waste": {
        "s": 2.0,
        **dict.fromkeys(PARTS, 0.05),
        "compute": 0.0,
        "waiting": 0.25,
        "reason": None,
        "reason_said": None,
    },
    "step_time_ms": {"total": 400.0},
    "real_tokens": 2000,
    "slowest_ranks": {"distinct": 2, "shares": [0.75, 0.25], "equal": 0.5},
}
WHY = Phrase.of("waste.no_fit")
UNKNOWN = {"waste": {**dict.fromkeys(("s", *PARTS)), "reason": str(WHY), "reason_said": WHY.record()}}


def speaker(store: RunStore, language: str, candidate: dict[str, object] | None = None) -> Speaker:
    subject = find_subject(store, None)
    if candidate is not None:
        for member in subject.arms["partition"]:
            member.summary.update(candidate)  # type: ignore[attr-defined]  # a dict behind the mapping
    return Speaker(subject, load_template(language), {"baseline.name": "`static`"})


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_and_its_sentences_stand_in_the_report(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({"candidate": "partition"}, summary=KNOWN)
    told = speaker(store, language)
    table, lines = wasted(told.subject.arms, told.template), waste_sentences(told)

    assert all(part in table for part in ("2.00", "25.0 %", "5.0 %", "rank 0: 75.0 %"))
    assert lines.count("2.00") == 2 and "50.0" in lines and "25.0" in lines
    text = render_report(told.subject, language, "md", told.subject.run.path)  # type: ignore[arg-type]  # a language
    assert table in text and lines in text and waterfall_sentence(told) in text
    if language != "en":
        assert english_words("\n".join((table, lines)), ("static", "partition", "rank")) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_best_candidate_gave_back_is_said_with_its_part(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({"candidate": "partition"}, summary=KNOWN)
    waste = {"s": 1.6, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.125}
    better = waterfall_sentence(speaker(store, language, {"waste": waste, "step_time_ms": {"total": 320.0}}))
    worse = {"s": 3.0, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.25, "exposed_comm": 13 / 60}
    costly = waterfall_sentence(speaker(store, language, {"waste": worse, "step_time_ms": {"total": 600.0}}))

    assert [number in better for number in ("200", "160", "30", "60")] == [True] * 4
    assert [number in costly for number in ("200", "300", "55")] == [True] * 3
    assert better != costly


@pytest.mark.parametrize("language", LANGUAGES)
def test_where_no_ideal_can_be_stated_the_reason_is_given(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({"candidate": "partition"}, summary=UNKNOWN)
    told = speaker(store, language)

    assert waterfall_sentence(told) == "" and wasted(told.subject.arms, told.template) == ""
    assert (str(WHY) in waste_sentences(told)) == (language == "en")
    if language != "en":
        assert english_words(waste_sentences(told), ("static", "partition", "token", "rank")) == []
