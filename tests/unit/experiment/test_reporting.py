"""Reports from made-up comparisons: every verdict, every gap, both languages, both formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from languages import english_sentences, facts

from dynbench.analysis.arms import describe
from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.stats import Ratio
from dynbench.analysis.verdict import Verdict, sentence
from dynbench.errors import RecordError, RunLookupError
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_input import Member, find_report_input, mean_of
from dynbench.experiment.reporting import FORMATS, render_report, to_html, write_report
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


def test_arms_configured_alike_are_never_recommended(store: RunStore, make_comparison: MakeComparison) -> None:
    again = {"candidate": "again", "aa": True, "verdict": "FASTER", "speedup": 1.4, "ci95": [1.3, 1.5]}
    make_comparison(again, {"candidate": "partition", "speedup": 1.1, "ci95": [1.05, 1.15]})
    subject = find_report_input(store, None)
    assert (best := conclude(subject).best) is not None and best.candidate == "partition"

    make_comparison(again)
    assert conclude(find_report_input(store, None)).best is None
    found = facts(find_report_input(store, None))
    assert found["conclusion"].claim == found["conclusion"].advice == found["method"]["work"] == "alike"


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


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_page_is_what_stands_before_the_contents_which_link_every_heading(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({})
    subject = find_report_input(store, None)
    whole = render_report(subject, language, "md", subject.run.path)
    short = render_report(subject, language, "md", subject.run.path, short=True)
    assert whole.startswith(short.rstrip()) and "timeline.png" in short and "| partition |" in short
    assert re.findall("^## ", short, re.M) == []
    page = render_report(subject, language, "html", subject.run.path)
    links = re.findall(r"\]\(#(.+)\)", whole)
    assert len(links) == len(set(links)) == len(re.findall("^###? ", whole, re.M)) - 1
    assert (
        [unquote(link) for link in re.findall('href="#(.+?)"', page)] == links == re.findall('<h[23] id="(.+?)"', page)
    )
    assert "<nav" not in render_report(subject, language, "html", subject.run.path, short=True)


def test_figures_are_found_again_after_the_results_were_moved(
    store: RunStore, make_comparison: MakeComparison, tmp_path: Path
) -> None:
    make_comparison({})
    moved = RunStore(store.root.rename(tmp_path / "moved"))

    assert len(find_report_input(moved, None).figures) == 2


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


def test_the_order_of_the_launches_is_claimed_only_where_it_was_planned(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    for make, order in (
        (lambda: make_comparison({}, planned=True), "abba"),
        (lambda: make_comparison({}), "unplanned"),
        (lambda: make_comparison(launches=2), "none"),
    ):
        make()
        assert facts(find_report_input(store, None))["method"]["order"] == order


@pytest.mark.parametrize(("launches", "claim"), [(1, "none"), (3, "launches")])
def test_one_run_and_several_launches_of_one_arm_are_told_apart(
    store: RunStore, make_comparison: MakeComparison, launches: int, claim: str
) -> None:
    make_comparison(launches=launches)

    found = conclude(find_report_input(store, None))
    assert (found.claim, found.advice, found.best) == (claim, claim, None)


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

    assert facts(find_report_input(store, None))["method"]["work"] == work


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

    text = render(store, "zh").partition("## 参考文献")[0]

    assert english_sentences(text) == []
    assert "| 警告 | torn_lines | a：丢弃了 3 行 |" in text
    assert ("挽回了 static 所损失时间的 60" in text) == (verdict is Verdict.FASTER)
    assert "| 已登记 |" in text
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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("*b_g*", '<em class="math">b<sub>g</sub></em>'),
        ("*L^2*", '<em class="math">L<sup>2</sup></em>'),
        ("*Σ_{i in S_g} f_i*", 'Σ<sub>i <span class="word">in</span> S<sub>g</sub></sub> f<sub>i</sub>'),
        ("*cap_g(L) < 3*", '<span class="word">cap</span><sub>g</sub>(L) &lt; 3'),
        ("*l_i +\nl_i^2*", '<em class="math">l<sub>i</sub> +\nl<sub>i</sub><sup>2</sup></em>'),
        ("*plain words*", "<em>plain words</em>"),
        ("*plain\nwords*", "<em>plain\nwords</em>"),
        ("a_b_c", "a_b_c"),
    ],
)
def test_mathematics_in_emphasis(source: str, expected: str, tmp_path: Path) -> None:
    assert expected in to_html(source, tmp_path, "en")


def test_an_indented_formula_has_a_column_of_labels(tmp_path: Path) -> None:
    page = to_html("```formula\nminimise  x_g\n          y\n```\n", tmp_path, "en")

    assert '<div class="formula columns">' in page
    assert "x<sub>g</sub>" in page
    assert "<span></span><span>y</span>" in page


def test_lines_that_all_begin_with_a_label_have_a_column_of_labels(tmp_path: Path) -> None:
    page = to_html("```formula\ntokens       c(S)\nattention    c(S) + 1\n```\n", tmp_path, "en")
    assert page.count('<span><span class="word">') == 2 and "<span>c(S)</span>" in page
    assert "columns" not in to_html("```formula\nx_g  y\nc(S)  =  z\n```\n", tmp_path, "en").partition("<body>")[2]


def test_images_are_inlined_and_missing_ones_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(b"\x89PNG")

    page = to_html("![x](a%20b.png)", tmp_path, "en")

    assert 'src="data:image/png;base64,iVBORw=="' in page
    with pytest.raises(TemplateError, match=r"gone.png: no such file"):
        to_html("![x](gone.png)", tmp_path, "en")


def test_the_page_is_self_contained_and_values_cannot_inject_markup(tmp_path: Path) -> None:
    page = to_html("# T <b>\n\n<script>alert(1)</script> <img src=x onerror=y>\n", tmp_path, "zh")

    assert "<script" not in page
    assert "<img src=x" not in page
    assert '<html lang="zh-CN">' in page
    assert "<title>T &lt;b&gt;</title>" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
