"""Tables of a report: every pair once, the faster arm first, and many arms with an overview."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import facts

from dynbench.analysis.questions import QUESTIONS
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.experiment.reporting import render_report
from dynbench.report import Template, load_template
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


def report(store: RunStore) -> str:
    subject = find_report_input(store, None)
    text = render_report(subject, "en", "md", subject.run.path)
    assert "{{" not in text and "None" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


def rows(text: str) -> list[list[str]]:
    """Cells of the table of pairs; none where the report has none."""
    heading = load_template("en").labels["headings.told_apart"]
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if heading in line and line.startswith("|")]
    if not starts:
        return []
    end = lines.index("", starts[0])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[starts[0] + 2 : end]]


def test_every_pair_stands_once_the_faster_arm_first(store: RunStore, make_comparison: MakeComparison) -> None:
    candidates = [{"ci_joint": [1.21, 1.29], "judged_together": 2}, {"candidate": "other", "judged_together": 2}]
    make_comparison(*candidates, pairs=PAIRS)
    text = report(store)
    labels = load_template("en").labels
    yes, no = labels["words.yes"], labels["words.no"]
    assert rows(text) == [
        ["partition", "other", yes, "2.000", "[1.600, 2.500]", "0.031"],
        ["partition", "static", yes, "1.250", "[1.210, 1.290]", "< 0.001"],
        ["other", "static", no, "1.010", "[0.980, 1.040]", "0.400"],
    ]
    assert "[1.210, 1.290]" in text.partition(labels["headings.told_apart"])[0], (
        "the interval of the verdict is the pair's"
    )
    found = facts(find_report_input(store, None))
    assert found["method"]["spread"] == "arms" and found["analysis.other_pairs"] == "1"


def test_p_values_of_a_pooled_spread_are_not_shown(store: RunStore, make_comparison: MakeComparison) -> None:
    """Earlier versions kept them: they tell equal arms apart where one arm spreads more."""
    make_comparison({}, {"candidate": "other"}, pairs=[{**pair, "spread": "pooled"} for pair in PAIRS])
    assert rows(report(store)) == []


@pytest.mark.parametrize("pairs", [[], PAIRS[1:2]], ids=["of an earlier version", "two arms"])
def test_without_a_third_arm_there_is_no_table(
    store: RunStore, make_comparison: MakeComparison, pairs: list[dict[str, object]]
) -> None:
    make_comparison({}, pairs=pairs)
    text = report(store)
    assert (rows(text), "Holm" in text) == ([], False)


MANY = ("partition", "window8", "hf_batch_rebalance_on_long_names", "again")
MEASURED: dict[str, object] = {"exposed_comm_ms": {"mean": 12.0}, "eval": {"loss": 0.5, "perplexity": 7.25}}


def read(store: RunStore) -> tuple[ReportInput, Template]:
    subject = find_report_input(store, None)
    return subject, load_template("en", name=subject.question.template)


def metrics_and_overview(subject: ReportInput, template: Template) -> tuple[str, str]:
    found = report_tables(Sources(subject, None, template, subject.run.path))
    return found["table.metrics"], found["table.overview"]


def of_each(**facts: object) -> list[dict[str, object]]:
    return [{"candidate": name, **facts} for name in MANY]


@pytest.mark.parametrize("question", QUESTIONS)
def test_many_arms_have_an_overview_and_a_row_in_every_family(
    store: RunStore, make_comparison: MakeComparison, question: str
) -> None:
    make_comparison(*of_each(), summary=MEASURED, question=question)
    subject, template = read(store)

    metrics, overview = metrics_and_overview(subject, template)
    for table in (overview, *metrics.split("\n\n")):
        if not table.startswith("**"):
            assert [line.split(" | ")[0].lstrip("| ") for line in table.splitlines()[2:]] == ["static", *MANY]
    shown = QUESTIONS[question].overview
    for value, key in (("12.000", "exposed_comm_ms.mean"), ("7.250", "eval.perplexity")):
        assert (value in overview) == (key in shown)
    assert "+20.0 %" in metrics
