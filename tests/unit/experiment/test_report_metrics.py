"""The tables of a report's metrics: a few arms beside each other, many an arm a row, in both languages and forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import english_words

from dynbench.analysis.questions import QUESTIONS
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.experiment.reporting import FORMATS, render_report
from dynbench.report import LANGUAGES, Template, load_template
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
MANY = ("partition", "window8", "hf_batch_rebalance_on_long_names", "again")
MEASURED: dict[str, object] = {"exposed_comm_ms": {"mean": 12.0}, "eval": {"loss": 0.5, "perplexity": 7.25}}


def read(store: RunStore, language: str) -> tuple[ReportInput, Template]:
    subject = find_report_input(store, None)
    return subject, load_template(language, name=subject.question.template)


def metrics_and_overview(subject: ReportInput, template: Template) -> tuple[str, str]:
    found = report_tables(Sources(subject, None, template, subject.run.path))
    return found["table.metrics"], found["table.overview"]


def of_each(**facts: object) -> list[dict[str, object]]:
    return [{"candidate": name, **facts} for name in MANY]


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_many_arms_have_an_overview_and_a_row_in_every_family(
    store: RunStore, make_comparison: MakeComparison, question: str, language: str
) -> None:
    make_comparison(*of_each(), summary=MEASURED, question=question)
    subject, template = read(store, language)

    metrics, overview = metrics_and_overview(subject, template)
    for table in (overview, *metrics.split("\n\n")):
        if not table.startswith("**"):
            assert [line.split(" | ")[0].lstrip("| ") for line in table.splitlines()[2:]] == ["static", *MANY]
    shown = QUESTIONS[question].overview
    for value, key in (("12.000", "exposed_comm_ms.mean"), ("7.250", "eval.perplexity")):
        assert (value in overview) == (key in shown)
    assert "+20.0 %" in metrics
    if language != "en":
        known = (*MANY, "static", "P95")
        assert english_words(overview, known) == english_words(metrics, known) == []
    text = render_report(subject, language, "md", subject.run.path)  # type: ignore[arg-type]  # a language
    assert overview in text and metrics in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("form", FORMATS)
def test_a_few_arms_have_one_table(store: RunStore, make_comparison: MakeComparison, language: str, form: str) -> None:
    make_comparison(*of_each()[:2], summary={**MEASURED, "throughput_samples_per_s": {"mean": 9.0}})
    subject, template = read(store, language)

    metrics, overview = metrics_and_overview(subject, template)
    assert overview == "" and metrics.splitlines()[0].count("static") == 1
    text = render_report(subject, language, form, subject.run.path)  # type: ignore[arg-type]  # a language and a form
    family = template.label("families.throughput in samples", "Throughput in samples")
    assert family not in text


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("verdict", Verdict)
def test_the_overview_tells_verdicts_and_noise(
    store: RunStore, make_comparison: MakeComparison, verdict: Verdict, language: str
) -> None:
    ends = {"ci95": None} if verdict is Verdict.ESTIMATE else {}
    given = of_each(verdict=verdict.value, **ends)
    given[-1] |= {"aa": True}
    make_comparison(*given)
    subject, template = read(store, language)

    _, _, baseline, *others = metrics_and_overview(subject, template)[1].splitlines()
    assert f"| static | {template.label('overview.baseline', 'baseline')} |" in baseline
    word = template.label(f"verdicts.{verdict}")
    assert all(f"| {word} | 1.250 |" in line for line in others[:-1])
    assert f"{word} ({template.label('overview.alike', 'alike')})" in others[-1]
    assert "0.500" not in "".join(others)


@pytest.mark.parametrize("language", LANGUAGES)
def test_html_shows_them_as_tables(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    make_comparison(*of_each(), summary=MEASURED)
    subject, template = read(store, language)

    text = render_report(subject, language, "html", subject.run.path)  # type: ignore[arg-type]  # a language
    family = template.label("families.loss and evaluation", "loss and evaluation")
    assert f"<strong>{family[0].upper()}{family[1:]}</strong>" in text
    assert text.count("<td>hf_batch_rebalance_on_long_names</td>") >= 5
