"""Reports from made-up comparisons: every verdict, every gap, both languages, both formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from languages import english_sentences, facts, said

from dynbench.analysis.arms import describe
from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.stats import Ratio
from dynbench.analysis.verdict import Verdict, sentence
from dynbench.errors import RecordError, RunLookupError
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_input import Member, find_report_input, mean_of
from dynbench.experiment.reporting import FORMATS, render_report, write_report
from dynbench.report import LANGUAGES, TemplateError
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]


def render(store: RunStore, language: str = "en", template: Path | None = None) -> str:
    subject = find_report_input(store, None)
    return render_report(subject, language, "md", subject.run.path, template)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_makes_a_report(
    store: RunStore, make_comparison: MakeComparison, language: str, verdict: Verdict
) -> None:
    changes: dict[str, object] = {"verdict": verdict.value}
    if verdict is Verdict.ESTIMATE:
        changes["ci95"] = None
    make_comparison(changes)

    text = render(store, language)

    assert "{{" not in text
    assert "None" not in text


def test_the_recommendation_computes_the_hours_saved_and_their_interval(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    make_comparison({"candidate": "prefix", "speedup": 1.1, "ci95": [1.05, 1.15]}, {"candidate": "partition"})

    text = render(store)

    recommendation = text[text.index("## 6. Conclusion") :]
    assert conclude(find_report_input(store, None)).advice == "FASTER"
    assert "`partition`" in recommendation and " 200 of every 1,000 GPU-hours" in unwrapped(recommendation)
    assert "[167,\N{NO-BREAK SPACE}231]" in recommendation


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_arms_configured_alike_are_never_recommended(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    again = {"candidate": "again", "aa": True, "verdict": "FASTER", "speedup": 1.4, "ci95": [1.3, 1.5]}
    make_comparison(again, {"candidate": "partition", "speedup": 1.1, "ci95": [1.05, 1.15]})
    subject = find_report_input(store, None)
    assert (best := conclude(subject).best) is not None and best.candidate == "partition"
    assert "**`again`" not in render(store, language)

    make_comparison(again)
    assert conclude(find_report_input(store, None)).best is None
    text = render(store, language)
    assert "{{" not in text and "None" not in text and "286" not in text
    found = facts(find_report_input(store, None), language)
    assert found["conclusion"].claim == found["conclusion"].advice == found["method"]["work"] == "alike"


def test_a_policy_that_costs_time_is_not_recommended(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({"verdict": "SLOWER", "speedup": 0.8, "ci95": [0.78, 0.82]})

    conclusion = unwrapped(render(store).partition("## 6. Conclusion")[2])

    assert conclude(find_report_input(store, None)).advice == "SLOWER"
    assert "0.800" in conclusion and "[0.780, 0.820]" in conclusion and "-250" not in conclusion


def test_what_was_not_measured_is_said_and_not_invented(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({"loss_max_rel_diff": None, "level": "stream"})

    text = render(store)

    assert facts(find_report_input(store, None))["solve.run"] is None
    assert "| Processor | not measured |" in text
    assert "| not compared |" in text


def test_checks_are_listed_and_their_bars_escaped(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({}, checks=[{"id": "drift", "severity": "warn", "seen": "a|b", "limit": "2 %", "hint": "wait"}])

    text = render(store)

    assert facts(find_report_input(store, None))["method"]["checks"] == 1
    assert "| warn | drift | a\\|b | 2 % | wait |" in text


def test_figures_are_linked_relative_to_the_report_and_missing_ones_are_left_out(
    store: RunStore, make_comparison: MakeComparison, tmp_path: Path
) -> None:
    folder = make_comparison({})
    subject = find_report_input(store, None)

    inside = write_report(subject)
    outside = write_report(subject, output=tmp_path / "elsewhere" / "my report.md")

    assert inside == folder.path / "report.en.md"
    assert "](figures/timeline.png)" in inside.read_text(encoding="utf-8")
    linked = re.findall(r"!\[[^]]*\]\(([^)]+)\)", outside.read_text(encoding="utf-8"))
    assert [Path(path).name for path in linked] == ["timeline.png", "unheard_of.png"]
    assert all((outside.parent / path).is_file() for path in linked)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("form", FORMATS)
def test_both_formats_in_both_languages(
    store: RunStore, make_comparison: MakeComparison, language: str, form: str
) -> None:
    make_comparison({})

    path = write_report(find_report_input(store, None), language, form)

    text = path.read_text(encoding="utf-8")
    assert path.name == f"report.{language}.{form}"
    assert text.count("<img") == (2 if form == "html" else 0)


def test_figures_are_found_again_after_the_results_were_moved(
    store: RunStore, make_comparison: MakeComparison, tmp_path: Path
) -> None:
    make_comparison({})
    moved = RunStore(store.root.rename(tmp_path / "moved"))

    assert len(find_report_input(moved, None).figures) == 2


def test_runs_that_were_removed_are_named_as_gone(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({})
    store.remove(store.resolve("@latest:static"), force=True)

    text = render(store)

    assert re.search(r"\| static \| `[^`]+` \| missing[^|]* \| missing[^|]* \|", text)


def test_an_own_template_is_used_and_its_mistakes_named(
    store: RunStore, make_comparison: MakeComparison, tmp_path: Path
) -> None:
    make_comparison({})
    own = tmp_path / "own.md"
    own.write_text("# {{ best.name }}: {{ best.speedup }}\n", encoding="utf-8")

    assert render(store, template=own) == "# `partition`: 1.250\n"

    own.write_text("# {{ best.nmae }}\n", encoding="utf-8")
    with pytest.raises(TemplateError, match=r"own.md:1: .*best.nmae.*best.name"):
        render(store, template=own)


def test_without_a_comparison_the_error_says_how_to_make_one(store: RunStore) -> None:
    store.create("train", "static")

    with pytest.raises(RunLookupError) as caught:
        find_report_input(store, None)

    assert "dynbench compare" in caught.value.hint


def test_the_latest_comparison_is_taken_whatever_came_after(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({})
    second = make_comparison({})
    store.create("train", "static")

    assert find_report_input(store, None).run == second


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"runs": [{"id": "x"}], "arms": [{"name": "a", "runs": []}]}'])
def test_a_broken_comparison_file_is_named(store: RunStore, make_comparison: MakeComparison, text: str) -> None:
    folder = make_comparison({})
    (folder.path / "comparison.json").write_text(text, encoding="utf-8")

    with pytest.raises(RecordError, match=r"comparison\.json"):
        find_report_input(store, None)


def test_a_run_without_rows_has_nothing_to_report(store: RunStore) -> None:
    run = store.create("train", "static")

    with pytest.raises(RecordError, match="neither a comparison nor"):
        find_report_input(store, run.id)


@pytest.mark.parametrize("other", ["AMBIGUOUS", "INCOMPARABLE"])
def test_what_was_found_faster_comes_before_what_only_looks_so(
    store: RunStore, make_comparison: MakeComparison, other: str
) -> None:
    make_comparison({"candidate": "prefix", "speedup": 1.9, "ci95": [0.9, 4.0], "verdict": other}, {})

    found = conclude(find_report_input(store, None))
    assert found.best is not None and (found.best.candidate, found.advice) == ("partition", "FASTER")


def test_partial_runs_are_left_out_of_means() -> None:
    whole, partial = Member("a", "a", {"x": 2.0}, None), Member("b", "b", {"x": 9.0, "partial": True}, None)
    assert mean_of([whole, partial], "x") == 2.0
    assert mean_of([partial], "x") == 9.0


def unwrapped(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_order_of_the_launches_is_claimed_only_where_it_was_planned(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    for make, order in (
        (lambda: make_comparison({}, planned=True), "abba"),
        (lambda: make_comparison({}), "unplanned"),
        (lambda: make_comparison(launches=2), "none"),
    ):
        make()
        subject = find_report_input(store, None)
        assert facts(subject, language)["method"]["order"] == order
        assert said(subject, "order", language) in unwrapped(render(store, language))


@pytest.mark.parametrize(("launches", "claim"), [(1, "none"), (3, "launches")])
def test_one_run_and_several_launches_of_one_arm_are_told_apart(
    store: RunStore, make_comparison: MakeComparison, launches: int, claim: str
) -> None:
    make_comparison(launches=launches)

    found = conclude(find_report_input(store, None))
    assert (found.claim, found.advice, found.best) == (claim, claim, None)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_virtual_ranks_are_named_wherever_their_numbers_stand(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({}, summary={"launcher": "virtual", "comm_model": "a ring"})
    subject = find_report_input(store, None)
    note = said(subject, "virtual", language)
    assert "a ring" in note

    blocks = [unwrapped(block) for block in render(store, language).split("\n\n")]

    assert subject.virtual
    after = [blocks[index - 1] for index, block in enumerate(blocks) if block == note]
    assert [block.startswith("|") for block in after] == [True, True]  # below comparisons and metrics
    texts = [block for block in blocks if note in block and block != note]
    assert len(texts) == 2  # abstract and recommendation
    virtual = said(subject, "ranks", language)
    assert sum(virtual in block for block in blocks) >= 2
    make_comparison({})
    assert note not in unwrapped(render(store, language))


@pytest.mark.parametrize(
    ("verdict", "level", "work"),
    [
        ("FASTER", "step", "step"),
        ("FASTER", "stream", "stream"),
        ("INCOMPARABLE", "step", "step"),
        ("INCOMPARABLE", "window", "window"),
        ("INCOMPARABLE", "stream", "different"),
    ],
)
def test_work_names_the_two_arms_and_says_what_the_hashes_say(
    store: RunStore, make_comparison: MakeComparison, verdict: str, level: str, work: str
) -> None:
    make_comparison({"verdict": verdict, "level": level, "candidate": "prefix", "loss_max_rel_diff": 2.5e-6})

    subject = find_report_input(store, None)
    told = said(subject, "work")

    assert facts(subject)["method"]["work"] == work
    assert told in unwrapped(render(store))
    assert "`prefix` and `static`" in told and ("2.5e-06" in told) == (work == "step")


def test_one_pair_is_not_called_one_launch_per_arm(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({"verdict": "ESTIMATE", "ci95": None, "launches": 1}, launches=3)

    shown = unwrapped(render(store))

    assert conclude(find_report_input(store, None)).claim == "ESTIMATE"
    assert "one launch per arm" not in shown.lower()
    assert "| Launches per arm | 3 |" in shown


@pytest.mark.parametrize("launcher", ["torchrun", "virtual"])
@pytest.mark.parametrize("verdict", Verdict)
def test_a_chinese_report_says_nothing_in_english(
    store: RunStore, make_comparison: MakeComparison, verdict: Verdict, launcher: str
) -> None:
    differences = describe({"train.seed": (0, 1), "rows": (Phrase.of("whole"), Phrase.of("whole"))})
    ratio = Ratio(1.25, None, None, 1) if verdict is Verdict.ESTIMATE else Ratio(1.25, 1.2, 1.3, 4)
    reason = (
        Phrase.of("reason.INCOMPARABLE", differences=differences)
        if verdict is Verdict.INCOMPARABLE
        else sentence(verdict, "static", "partition", ratio, 0.02, 0.95)
    )
    model = Phrase.of("comm_model.none")
    values = {"run": "a", "lines": 3}
    finding = Finding("warn", "a: 3 lines were dropped", "no lines", "Do it again.", "torn_lines", values)
    summary: dict[str, object] = {"launcher": launcher}
    if launcher == "virtual":
        summary |= {"comm_model": model, "comm_model_said": model.record()}
    bound = {"bound_speedup": 1.5, "recovered_share": 0.6}
    make_comparison(
        {"verdict": verdict.value, "reason": reason, "reason_said": reason.record(), **bound},
        checks=[finding.as_dict()],
        summary=summary,
    )

    text, _, appendix = render(store, "zh").partition("## 参考文献")

    assert english_sentences(text) == []
    assert english_sentences(appendix.partition("## 附录")[2]) == []
    assert "| 警告 | torn_lines | a：丢弃了 3 行 |" in text
    assert ("挽回了 static 所损失时间的 60" in text) == (verdict is Verdict.FASTER)
    assert "| 已登记 |" in appendix
    assert ("train.seed（0 与 1）、rows（完整 与 完整）" in text) == (verdict is Verdict.INCOMPARABLE)
    assert ("通信模型：无，通信不占时间" in text) == (launcher == "virtual")


@pytest.mark.parametrize("language", LANGUAGES)
def test_records_of_an_earlier_version_are_quoted(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    old = {"id": "drift", "severity": "warn", "seen": "a: it drifts", "limit": "2 %", "hint": "wait"}
    make_comparison({"verdict": "INCOMPARABLE"}, checks=[old], summary={"launcher": "virtual", "comm_model": "a ring"})

    text = render(store, language)

    assert "| drift | a: it drifts | 2 % |" in text
    assert "the interval lies above 1" in text
    assert "a ring" in text
