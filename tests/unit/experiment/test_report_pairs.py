"""Who beats whom in a report: every pair once, the faster arm first, and how the p values are held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynbench.analysis.questions import DEFAULT, QUESTIONS
from dynbench.experiment.reporting import FORMATS, render_report
from dynbench.experiment.subject import find_subject
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
POOLED = {"spread": "pooled", "pooled_ci95": [1.21, 1.29]}
PAIRS: list[dict[str, object]] = [
    {"candidate": "other", "p_holm": 0.4, "speedup": 1.01, "spread": "pooled", "pooled_ci95": [0.98, 1.04]},
    {"candidate": "partition", "p_holm": 0.0002, "faster": "partition", **POOLED},
    {"baseline": "partition", "candidate": "other", "speedup": 0.5, "p_holm": 0.031, "faster": "partition",
     "spread": "pooled", "pooled_ci95": [0.4, 0.625]},
]  # fmt: skip


def report(store: RunStore, language: str, form: str = "md") -> str:
    subject = find_subject(store, None)
    text = render_report(subject, language, form, subject.run.path)  # type: ignore[arg-type]  # one of FORMATS
    assert "{{" not in text and "None" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


def rows(text: str, language: str) -> list[list[str]]:
    """Cells of the table of pairs; none where the report has none."""
    heading = load_template(language).labels["headings.told_apart"]
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if heading in line and line.startswith("|")]
    if not starts:
        return []
    end = lines.index("", starts[0])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[starts[0] + 2 : end]]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("question", [None, "sync"])
def test_every_pair_stands_once_the_faster_arm_first(
    store: RunStore, make_comparison: MakeComparison, language: str, question: str | None
) -> None:
    make_comparison({}, {"candidate": "other"}, pairs=PAIRS, question=question)
    text = report(store, language)
    words = load_template(language).labels
    yes, no = words["words.yes"], words["words.no"]
    assert rows(text, language) == [
        ["partition", "other", yes, "2.000", "[1.600, 2.500]", "0.031"],
        ["partition", "static", yes, "1.250", "[1.210, 1.290]", "< 0.001"],
        ["other", "static", no, "1.010", "[0.980, 1.040]", "0.400"],
    ]
    joint = words["pairs.pooled"].partition("{{")[0]
    assert " ".join(joint.split()) in " ".join(text.split())
    assert " 3 " in text.partition("Holm 1979")[0][-80:]


@pytest.mark.parametrize("language", LANGUAGES)
def test_spreads_that_could_not_be_pooled_are_said_so(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison(
        {}, {"candidate": "other"}, pairs=[{**pair, "spread": "own", "pooled_ci95": None} for pair in PAIRS]
    )
    labels, text = load_template(language).labels, report(store, language)
    assert labels["pairs.own"].split("Holm 1979")[1].strip()[:40] in " ".join(text.split())
    assert "[1.200, 1.300]" in [row[4] for row in rows(text, language)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("pairs", [[], PAIRS[1:2]], ids=["of an earlier version", "two arms"])
def test_without_a_third_arm_there_is_no_table(
    store: RunStore, make_comparison: MakeComparison, language: str, form: str, pairs: list[dict[str, object]]
) -> None:
    make_comparison({}, pairs=pairs)
    text = report(store, language, form)
    assert (rows(text, language), "Holm" in text) == ([], False)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("question", [DEFAULT.name, *(name for name in QUESTIONS if name != DEFAULT.name)])
def test_two_stages_are_told_where_there_were_two(
    store: RunStore, make_comparison: MakeComparison, language: str, question: str
) -> None:
    make_comparison({"first_stage": 8, "launches": 14}, question=question)
    assert "Stein 1945" in report(store, language)
    make_comparison({}, question=question)
    assert "Stein" not in report(store, language)
