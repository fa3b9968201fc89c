"""The report of every question: its own title and chapters in both languages, and nothing of another one's."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from languages import english_sentences

from dynbench.analysis.questions import DEFAULT, QUESTIONS
from dynbench.analysis.verdict import Verdict
from dynbench.errors import UsageError
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.reporting import FORMATS, NEEDED, render_report
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
OTHERS = [name for name, question in QUESTIONS.items() if question is not DEFAULT]
OF_SCHEDULING = {
    "en": ("policy", "policies", "scheduler", "`partition`", "min-max", "greedy", "# Waiting for"),
    "zh": ("策略", "贪心", "极小化极大", "`partition`", "# 等待最慢的 rank"),
}
"""What only a report on schedules speaks of as its subject."""
MEASURED: dict[str, object] = {
    "exposed_comm_ms": {"mean": 12.0},
    "peak_mem_mb": {"max": 700.0},
    "std_over_ranks": {"peak_mem_mb": {"mean": 9.0}},
    "eval": {"loss": 0.5},
}
ARM: dict[str, object] = {
    "candidate": "arm", "efficiency": 0.75, "loss_drift": 0.013, "speedup": 1.5, "predicted_speedup": 1.7,
    "bound_speedup": 1.9, "recovered_share": 0.6,
}  # fmt: skip


def report(store: RunStore, language: str, form: str = "md") -> str:
    subject = find_report_input(store, None)
    text = render_report(subject, language, form, subject.run.path)  # type: ignore[arg-type]  # one of FORMATS
    assert "{{" not in text and "None" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("name", OTHERS)
def test_a_report_is_on_its_question(
    store: RunStore, make_comparison: MakeComparison, name: str, verdict: Verdict, language: str
) -> None:
    ends = {"ci95": None} if verdict is Verdict.ESTIMATE else {}
    make_comparison({**ARM, "verdict": verdict.value, **ends}, summary=MEASURED, question=name)

    text = report(store, language)

    labels, question = load_template(language, name=QUESTIONS[name].template).labels, QUESTIONS[name]
    assert text.startswith(f"# {labels[f'questions.{name}.question.title']}\n")
    body = re.sub(r"^\|.*$|^!.*$|`[^`]*`", "", text.partition("## Appendix")[0].partition("## 附录")[0], flags=re.M)
    if name != "levers":
        assert [words for words in OF_SCHEDULING[language] if words in body] == []
    assert re.findall("^### (?!2)(.+)$", text, re.M) == [
        labels[f"chapters.{chapter}.title"] for chapter in question.chapters if chapter not in NEEDED
    ]
    other = [labels[f"questions.{each}.question.title"] for each in OTHERS if each != name]
    assert [title for title in other if f"# {title}" in text] == []
    assert ("1.900" in text, "1.700" in text, "60.0 %" in text) == (False, False, False)
    assert ("75.0 %" in text) == (name in ("scaling", "topology"))
    assert ("+1.30 %" in text) == (question.loss_drift is not None)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", OTHERS)
def test_it_is_all_chinese(store: RunStore, make_comparison: MakeComparison, name: str, form: str) -> None:
    make_comparison(ARM, {**ARM, "candidate": "other", "level": "tokens"}, summary=MEASURED, question=name)

    text = report(store, "zh", form)

    if form == "md":
        text = text.replace("the interval lies above 1", "")
        assert english_sentences(text.partition("## 参考文献")[0]) == []


@pytest.mark.parametrize("question", [None, DEFAULT.name])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_report_on_schedules_stays(
    store: RunStore, make_comparison: MakeComparison, language: str, question: str | None
) -> None:
    make_comparison({"candidate": "partition"}, question=question)

    text = report(store, language)

    assert text.startswith("# Waiting for the slowest rank\n" if language == "en" else "# 等待最慢的 rank\n")
    assert "### 4.8" in text


def test_an_unknown_question_of_a_later_version_is_told(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({}, question="cooling")

    with pytest.raises(UsageError, match="'cooling': no such question"):
        find_report_input(store, None)


@pytest.mark.parametrize("template", sorted({question.template for question in QUESTIONS.values()}))
def test_both_languages_have_the_same_texts_and_chapters(template: str) -> None:
    en, zh = (load_template(language, name=template) for language in LANGUAGES)

    named = [re.findall(r"\{\{ ([\w.]+) \}\}", each.body) for each in (en, zh)]
    found = [sorted(name for name in names if name != "work.unit") for names in named]
    assert found[0] == found[1]
    own = [{key for key in each.labels if key.startswith(("questions.", "chapters."))} for each in (en, zh)]
    assert own[0] == own[1]
    for question in QUESTIONS.values():
        if question.template == template:
            assert {f"chapters.{name}.text" for name in question.chapters} <= own[0]
            assert template == "template" or f"questions.{question.name}.question.introduction" in own[0]


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_setting_names_all_ranks_and_no_planner_where_nothing_is_planned(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    labels = load_template(language).labels
    planner, ranks = labels["settings.cost_type"], labels["settings.world_size"]
    make_comparison(ARM, summary=MEASURED, summaries={"arm": {"world_size": 4}}, question="scaling")
    assert f"| {ranks} | 2, 4 |" in report(store, language)
    assert f"| {planner} |" not in report(store, language).partition("## Appendix")[0].partition("## 附录")[0]
    make_comparison(ARM, summary=MEASURED, question="levers")
    assert f"| {planner} |" in report(store, language)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("verdict", Verdict)
def test_no_hours_are_claimed_of_arms_on_unequal_numbers_of_ranks(
    store: RunStore, make_comparison: MakeComparison, verdict: Verdict, language: str
) -> None:
    found: dict[str, object] = {**ARM, "verdict": verdict.value}

    def told(ranks: int) -> tuple[bool, bool]:
        make_comparison(found, summary=MEASURED, summaries={"arm": {"world_size": ranks}}, question="sync")
        text = report(store, language)
        return "| 333 |" in text, conclude(find_report_input(store, None)).advice == "ranks"

    assert told(2) == (verdict is Verdict.FASTER, False)
    assert told(4) == (False, verdict is Verdict.FASTER)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("question", ["sync", None])
def test_samples_without_lengths_are_not_called_tokens(
    store: RunStore, make_comparison: MakeComparison, question: str | None, language: str
) -> None:
    rates: dict[str, object] = {"throughput_tokens_per_s": {"mean": None}, "padding_ratio": None}
    rates["throughput_samples_per_s"] = {"mean": 320.0}
    of_samples = {"en": "samples", "zh": "样本"}[language]
    for workload, tokens in (("mlp", False), ("text_classification", True)):
        flags = {arm: {"workload.name": workload} for arm in ("static", "arm")}
        make_comparison(ARM, summary=MEASURED | rates, flags=flags, question=question)
        text = report(store, language)
        said = re.findall(r".*real\s+token.*|.*真实 token.*", text, re.I)
        assert bool(said) == tokens, said
        assert of_samples in text
        assert (load_template(language).label("settings.max_length") in text) == tokens
