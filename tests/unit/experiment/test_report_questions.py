"""The report of every question: its own title and chapters in both languages, and nothing of another one's."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from languages import english_sentences

from dynbench.analysis.questions import DEFAULT, QUESTIONS
from dynbench.errors import UsageError
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_input import find_report_input, saved_hours
from dynbench.experiment.reporting import NEEDED, render_report
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
OTHERS = [name for name, question in QUESTIONS.items() if question is not DEFAULT]
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


def report(store: RunStore, language: str) -> str:
    subject = find_report_input(store, None)
    text = render_report(subject, language, "md", subject.run.path)
    assert "{{" not in text and "None" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", OTHERS)
def test_a_report_is_on_its_question(
    store: RunStore, make_comparison: MakeComparison, name: str, language: str
) -> None:
    make_comparison(ARM, summary=MEASURED, question=name)

    text = report(store, language)

    labels, question = load_template(language, name=QUESTIONS[name].template).labels, QUESTIONS[name]
    assert text.startswith(f"# {labels[f'questions.{name}.question.title']}\n")
    titles = {chapter: labels[f"chapters.{chapter}.title"] for chapter in question.chapters if chapter not in NEEDED}
    assert [title for title in re.findall("^### (.+)$", text, re.M) if title in titles.values()] == [*titles.values()]
    other = [labels[f"questions.{each}.question.title"] for each in OTHERS if each != name]
    assert [title for title in other if f"# {title}" in text] == []
    assert ("1.900" in text, "1.700" in text, "60.0 %" in text) == (False, False, False)
    assert ("75.0 %" in text) == (name in ("scaling", "topology"))
    assert ("+1.30 %" in text) == (question.loss_drift is not None)


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_all_chinese(store: RunStore, make_comparison: MakeComparison, name: str) -> None:
    make_comparison(ARM, {**ARM, "candidate": "other", "level": "tokens"}, summary=MEASURED, question=name)

    text = report(store, "zh").replace("the interval lies above 1", "")

    assert english_sentences(text.partition("## 参考文献")[0]) == []


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


@pytest.mark.parametrize(("ranks", "hours", "advice"), [(2, "333", "FASTER"), (4, None, "ranks")])
def test_no_hours_are_claimed_of_arms_on_unequal_numbers_of_ranks(
    store: RunStore, make_comparison: MakeComparison, ranks: int, hours: str | None, advice: str
) -> None:
    make_comparison(ARM, summary=MEASURED, summaries={"arm": {"world_size": ranks}}, question="sync")
    subject = find_report_input(store, None)
    assert (saved_hours(subject.comparisons[0], subject), conclude(subject).advice) == (hours, advice)


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
