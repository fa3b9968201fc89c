"""Who beats whom in a report: every pair once, the faster arm first, and how the p values are held."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import facts, said

from dynbench.analysis.questions import DEFAULT, QUESTIONS
from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.reporting import FORMATS, render_report
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
ARMS = {"spread": "arms", "judged_together": 2}
PAIRS: list[dict[str, object]] = [
    {"candidate": "other", "p_holm": 0.4, "speedup": 1.01, "ci_joint": [0.98, 1.04], **ARMS},
    {"candidate": "partition", "p_holm": 0.0002, "faster": "partition", "ci_joint": [1.21, 1.29], **ARMS},
    {"baseline": "partition", "candidate": "other", "speedup": 0.5, "p_holm": 0.031, "faster": "partition",
     "spread": "arms", "ci_joint": [0.4, 0.625]},
]  # fmt: skip


def report(store: RunStore, language: str, form: str = "md") -> str:
    subject = find_report_input(store, None)
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
    candidates = [{"ci_joint": [1.21, 1.29], "judged_together": 2}, {"candidate": "other", "judged_together": 2}]
    make_comparison(*candidates, pairs=PAIRS, question=question)
    text = report(store, language)
    labels = load_template(language).labels
    yes, no = labels["words.yes"], labels["words.no"]
    assert rows(text, language) == [
        ["partition", "other", yes, "2.000", "[1.600, 2.500]", "0.031"],
        ["partition", "static", yes, "1.250", "[1.210, 1.290]", "< 0.001"],
        ["other", "static", no, "1.010", "[0.980, 1.040]", "0.400"],
    ]
    assert "[1.210, 1.290]" in text.partition(labels["headings.told_apart"])[0], (
        "the interval of the verdict is the pair's"
    )
    found = facts(find_report_input(store, None), language)
    assert "Welch" in text and found["method"]["spread"] == "arms"
    assert found["analysis.other_pairs"] == "1" and said(find_report_input(store, None), "pairs", language) in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("pairs", [0, 2])
def test_spreads_of_pairs_alone_are_said_so_and_one_candidate_has_no_family(
    store: RunStore, make_comparison: MakeComparison, language: str, pairs: int
) -> None:
    own = [{**pair, "spread": "own"} for pair in PAIRS[:pairs]]
    make_comparison(*({"candidate": name, "judged_together": pairs or 1} for name in ("partition", "other")), pairs=own)
    text = report(store, language)
    assert ("Holm" in text, "Welch" in text) == (bool(pairs), False)


@pytest.mark.parametrize("language", LANGUAGES)
def test_p_values_of_a_pooled_spread_are_not_shown(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    """Earlier versions kept them: they tell equal arms apart where one arm spreads more."""
    make_comparison({}, {"candidate": "other"}, pairs=[{**pair, "spread": "pooled"} for pair in PAIRS])
    assert rows(report(store, language), language) == []


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
