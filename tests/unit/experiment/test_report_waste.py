"""What a report says of the time beyond the ideal, in both languages and every outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import english_words, said

from dynbench.analysis.waste import PARTS
from dynbench.experiment.report_arms import Waterfall, waterfall, without_ideal
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.experiment.reporting import render_report
from dynbench.report import LANGUAGES, Template, load_template
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


def wasted(subject: ReportInput, template: Template) -> str:
    return report_tables(Sources(subject, None, template, subject.run.path))["table.waste"]


def found(store: RunStore, candidate: dict[str, object] | None = None) -> ReportInput:
    subject = find_report_input(store, None)
    if candidate is not None:
        for member in subject.arms["partition"]:
            member.summary.update(candidate)  # type: ignore[attr-defined]  # a dict behind the mapping
    return subject


def fallen(subject: ReportInput) -> Waterfall | None:
    return waterfall(subject, conclude(subject).best)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_stands_in_the_report(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    make_comparison({"candidate": "partition"}, summary=KNOWN)
    subject, template = found(store), load_template(language)
    table = wasted(subject, template)

    assert all(part in table for part in ("2.00", "25.0 %", "5.0 %", "rank 0: 75.0 %"))
    assert without_ideal(subject, template) == {} and said(subject, "waste", language) == ""
    text = render_report(subject, language, "md", subject.run.path)  # type: ignore[arg-type]  # a language
    assert table in text
    if language != "en":
        assert english_words(table, ("static", "partition", "rank")) == []


BETTER = {"s": 1.6, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.125}, 320.0
WORSE = {"s": 3.0, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.1, "exposed_comm": 22 / 60}, 600.0
"""Waste of a candidate and its time, ms; the worse one waits for 10 ms less, and exposes more communication."""


@pytest.mark.parametrize(
    ("verdict", "candidate", "told"),
    [
        ("FASTER", BETTER, (True, "waiting", 200, 160, 30, 60)),
        ("SLOWER", WORSE, (False, "exposed_comm", 200, 300, 100, 200)),
        ("AMBIGUOUS", BETTER, None),
        ("AMBIGUOUS", WORSE, None),
        ("SAME", BETTER, None),
        ("SLOWER", BETTER, None),
    ],
)
def test_what_the_best_candidate_gave_back_or_took_is_told_where_verdict_and_parts_agree(
    store: RunStore,
    make_comparison: MakeComparison,
    verdict: str,
    candidate: tuple[dict[str, float], float],
    told: tuple[object, ...] | None,
) -> None:
    make_comparison({"candidate": "partition", "verdict": verdict}, summary=KNOWN)
    waste, total = candidate
    fall = fallen(found(store, {"waste": waste, "step_time_ms": {"total": total}}))
    if told is None or fall is None:
        assert fall is told
        return
    assert (fall.faster, fall.part) == told[:2] and fall.grew is None
    assert (fall.before, fall.after, fall.change, fall.left) == pytest.approx(told[2:])


def test_where_one_part_gave_back_more_than_the_whole_the_one_that_grew_is_named(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    """Of 40 ms per 1,000 tokens that came back, 46 were waiting, beside 14 more of exposed communication."""
    waste = {"s": 1.6, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.025, "exposed_comm": 0.15}
    make_comparison({"candidate": "partition"}, summary=KNOWN)
    fall = fallen(found(store, {"waste": waste, "step_time_ms": {"total": 320.0}}))
    assert fall is not None and (fall.grew, fall.more) == ("exposed_comm", pytest.approx(14))
    longer_ideal = {"s": 160 / 145, **dict.fromkeys(PARTS, 0.0), "padding": 0.05, "other": 0.04375}
    for waste, total in (BETTER, (longer_ideal, 320.0)):
        fall = fallen(found(store, {"waste": waste, "step_time_ms": {"total": total}}))
        assert fall is not None and fall.grew is None


@pytest.mark.parametrize("language", LANGUAGES)
def test_where_no_ideal_can_be_stated_the_reason_is_given(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({"candidate": "partition"}, summary=UNKNOWN)
    subject = found(store)
    text = said(subject, "waste", language)

    assert said(subject, "waterfall", language) == "" and wasted(subject, load_template(language)) == ""
    assert [*without_ideal(subject, load_template(language)).values()] == [["static", "partition"]]
    assert (str(WHY) in text) == (language == "en") and "`static`, `partition`" in text
    if language != "en":
        assert english_words(text, ("static", "partition", "token", "rank")) == []
