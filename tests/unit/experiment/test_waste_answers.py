"""What a report says of the time beyond the ideal, in both languages and every outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import english_words

from dynbench.analysis.table_specs import WASTE
from dynbench.analysis.tables import Label
from dynbench.analysis.waste import PARTS
from dynbench.experiment.answers import Speaker
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.experiment.reporting import render_report
from dynbench.experiment.subject import find_subject
from dynbench.experiment.waste_answers import waste_sentences, waterfall_sentence
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


def heading(part: str, label: Label) -> str:
    return label(f"waste.{part}", WASTE[part])


def wasted(told: Speaker) -> str:
    return report_tables(Sources(told.subject, None, told.template, told.subject.run.path))["table.waste"]


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
    table, lines = wasted(told), waste_sentences(told)

    assert all(part in table for part in ("2.00", "25.0 %", "5.0 %", "rank 0: 75.0 %"))
    assert lines.count("2.00") == 2 and "50.0" in lines and "25.0" in lines
    text = render_report(told.subject, language, "md", told.subject.run.path)  # type: ignore[arg-type]  # a language
    assert table in text and lines in text and waterfall_sentence(told) in text
    if language != "en":
        assert english_words("\n".join((table, lines)), ("static", "partition", "rank")) == []


BETTER = {"s": 1.6, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.125}, 320.0
WORSE = {"s": 3.0, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.1, "exposed_comm": 22 / 60}, 600.0
"""Waste of a candidate and its time, ms; the worse one waits for 10 ms less, and exposes more communication."""


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("verdict", "candidate", "numbers"),
    [
        ("FASTER", BETTER, ("200", "160", "30", "60")),
        ("SLOWER", WORSE, ("200", "300", "100", "200")),
        ("AMBIGUOUS", BETTER, None),
        ("AMBIGUOUS", WORSE, None),
        ("SAME", BETTER, None),
        ("SLOWER", BETTER, None),
    ],
)
def test_what_the_best_candidate_gave_back_or_took_is_said_where_verdict_and_parts_agree(
    store: RunStore,
    make_comparison: MakeComparison,
    verdict: str,
    candidate: tuple[dict[str, float], float],
    numbers: tuple[str, ...] | None,
    language: str,
) -> None:
    make_comparison({"candidate": "partition", "verdict": verdict}, summary=KNOWN)
    waste, total = candidate
    told = speaker(store, language, {"waste": waste, "step_time_ms": {"total": total}})
    text = waterfall_sentence(told)
    if numbers is None:
        assert text == ""
        return
    part = heading("waiting" if verdict == "FASTER" else "exposed_comm", told.template.label)
    assert part in text and [number in text for number in numbers] == [True] * 4


@pytest.mark.parametrize("language", LANGUAGES)
def test_where_one_part_gave_back_more_than_the_whole_the_one_that_grew_is_named(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    """Of 40 ms per 1,000 tokens that came back, 46 were waiting, beside 14 more of exposed communication."""
    waste = {"s": 1.6, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.025, "exposed_comm": 0.15}
    make_comparison({"candidate": "partition"}, summary=KNOWN)
    told = speaker(store, language, {"waste": waste, "step_time_ms": {"total": 320.0}})
    assert heading("exposed_comm", told.template.label) in (text := waterfall_sentence(told)) and "14" in text
    longer_ideal = {"s": 160 / 145, **dict.fromkeys(PARTS, 0.0), "padding": 0.05, "other": 0.04375}
    for waste, total in (BETTER, (longer_ideal, 320.0)):
        told = speaker(store, language, {"waste": waste, "step_time_ms": {"total": total}})
        text = waterfall_sentence(told)
        assert text and not any(heading(part, told.template.label) in text for part in ("compute", "exposed_comm"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_where_no_ideal_can_be_stated_the_reason_is_given(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({"candidate": "partition"}, summary=UNKNOWN)
    told = speaker(store, language)

    assert waterfall_sentence(told) == "" and wasted(told) == ""
    assert (str(WHY) in waste_sentences(told)) == (language == "en")
    if language != "en":
        assert english_words(waste_sentences(told), ("static", "partition", "token", "rank")) == []
