"""Reports from made-up comparisons: every verdict, every question, every gap, both languages and formats."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from languages import english_sentences, facts
from unit.experiment.conftest import MakeComparison, Reported

from dynbench.analysis.arms import describe
from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.stats import Ratio
from dynbench.analysis.verdict import Verdict, sentence
from dynbench.errors import RecordError, RunLookupError, UsageError
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_input import Member, ReportInput, find_report_input, mean_of
from dynbench.experiment.reporting import render_report, to_html, write_report
from dynbench.report import LANGUAGES, TemplateError, load_template
from dynbench.runs.phrase import Phrase
from dynbench.runs.store import RunStore


def render(subject: ReportInput, language: str = "en", template: Path | None = None) -> str:
    text = render_report(subject, language, "md", subject.run.path, template)
    assert "{{" not in text and "None" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_arms_configured_alike_are_never_recommended(reported: Reported) -> None:
    again = {"candidate": "again", "aa": True, "verdict": "FASTER", "speedup": 1.4, "ci95": [1.3, 1.5]}
    subject = reported(again, {"candidate": "partition", "speedup": 1.1, "ci95": [1.05, 1.15]})
    assert (best := conclude(subject).best) is not None and best.candidate == "partition"

    subject = reported(again)
    assert conclude(subject).best is None
    found = facts(subject)
    assert found["conclusion"].claim == found["conclusion"].advice == found["method"]["work"] == "alike"


def test_figures_are_linked_relative_to_the_report_found_again_after_a_move_and_left_out_where_they_are_gone(
    store: RunStore, reported: Reported, tmp_path: Path
) -> None:
    subject = reported({})

    inside = write_report(subject)
    outside = write_report(subject, output=tmp_path / "elsewhere" / "my report.md")

    assert inside == subject.run.path / "report.en.md"
    assert "](figures/timeline.png)" in inside.read_text(encoding="utf-8")
    linked = re.findall(r"!\[[^]]*\]\(([^)]+)\)", outside.read_text(encoding="utf-8"))
    assert [Path(path).name for path in linked] == ["timeline.png", "unheard_of.png"]
    assert all((outside.parent / path).is_file() for path in linked)

    moved = RunStore(store.root.rename(tmp_path / "moved"))
    assert len(find_report_input(moved, None).figures) == 2


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_page_is_what_stands_before_the_contents_which_link_every_heading(
    reported: Reported, language: str
) -> None:
    subject = reported({})
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


def test_an_own_template_is_used_and_its_mistakes_named(reported: Reported, tmp_path: Path) -> None:
    subject, own = reported({}), tmp_path / "own.md"
    own.write_text("# {{ best.name }}: {{ best.speedup }}\n", encoding="utf-8")

    assert render(subject, template=own) == "# `partition`: 1.250\n"

    own.write_text("# {{ best.nmae }}\n", encoding="utf-8")
    with pytest.raises(TemplateError, match=r"own.md:1: .*best.nmae.*best.name"):
        render(subject, template=own)


def test_the_latest_comparison_is_taken_or_the_error_says_how_to_make_one(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    store.create("train", "static")
    with pytest.raises(RunLookupError) as caught:
        find_report_input(store, None)
    assert "dynbench compare" in caught.value.hint

    for planned, order in ((True, "abba"), (False, "unplanned")):
        latest = make_comparison({}, planned=planned)
        store.create("train", "static")
        found = find_report_input(store, None)
        assert found.run == latest and facts(found)["method"]["order"] == order


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


def test_partial_runs_are_left_out_of_means() -> None:
    whole, partial = Member("a", "a", {"x": 2.0}, None), Member("b", "b", {"x": 9.0, "partial": True}, None)
    assert mean_of([whole, partial], "x") == 2.0
    assert mean_of([partial], "x") == 9.0


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
    reported: Reported, verdict: str, level: str, work: str
) -> None:
    subject = reported({"verdict": verdict, "level": level, "candidate": "prefix", "loss_max_rel_diff": 2.5e-6})

    assert facts(subject)["method"]["work"] == work


@pytest.mark.parametrize("language", LANGUAGES)
def test_trained_weights_are_held_against_each_other_where_they_were_kept(reported: Reported, language: str) -> None:
    def columns(*changes: dict[str, object]) -> int:
        table = str(facts(reported(*changes), language)["table.comparisons"])
        return table.partition("\n")[0].count("|") + ("2.5e-07" in table)

    kept = columns({"candidate": "two", "weights_max_diff": 2.5e-7}, {"candidate": "three"})
    assert kept == columns({"candidate": "two"}) + 2, "a column, and what is in it"


@pytest.mark.parametrize("verdict", Verdict)
def test_a_chinese_report_says_nothing_in_english(reported: Reported, verdict: Verdict) -> None:
    """Reasons, findings and models of communication stand in records in English, with what they are said from."""
    differences = describe({"train.seed": (0, 1), "rows": (Phrase.of("whole"), Phrase.of("whole"))})
    ratio = Ratio(1.25, None, None, 1) if verdict is Verdict.ESTIMATE else Ratio(1.25, 1.2, 1.3, 4)
    incomparable = verdict is Verdict.INCOMPARABLE
    reason = (
        Phrase.of("reason.INCOMPARABLE", differences=differences)
        if incomparable
        else sentence(verdict, "static", "partition", ratio, 0.02, 0.95)
    )
    model = Phrase.of("comm_model.none")
    values = {"run": "a", "lines": 3}
    finding = Finding("warn", "a: 3 lines were dropped", "no lines", "Do it again.", "torn_lines", values)
    arm = {"verdict": verdict.value, "reason": reason, "reason_said": reason.record()}
    summary = {"launcher": "virtual", "comm_model": model, "comm_model_said": model.record()}
    bounds = {"bound_speedup": 1.5, "recovered_share": 0.6}
    text = render(reported(arm | bounds, checks=[finding.as_dict()], summary=summary), "zh").partition("## 参考文献")[0]

    assert english_sentences(text) == []
    assert "| 警告 | torn_lines | a：丢弃了 3 行 |" in text
    assert ("train.seed（0 与 1）、rows（完整 与 完整）" in text) == incomparable
    assert "通信模型：无，通信不占时间" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_records_of_an_earlier_version_are_quoted(reported: Reported, language: str) -> None:
    old = {"id": "drift", "severity": "warn", "seen": "a: it drifts", "limit": "2 %", "hint": "wait"}
    summary = {"launcher": "virtual", "comm_model": "a ring"}

    text = render(reported({"verdict": "INCOMPARABLE"}, checks=[old], summary=summary), language)

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


@pytest.mark.parametrize(
    ("formula", "cells"),
    [
        ("min  x_g\n     y", ["x<sub>g</sub>", "<span></span><span>y</span>"]),
        ("tokens       c(S)\nattention    c(S) + 1", ['<span><span class="word">', "<span>c(S)</span>"]),
        ("x_g  y\nc(S)  =  z", None),
    ],
    ids=["indented", "all labelled", "neither"],
)
def test_labels_of_a_formula_have_a_column_of_their_own(tmp_path: Path, formula: str, cells: list[str] | None) -> None:
    page = to_html(f"```formula\n{formula}\n```\n", tmp_path, "en").partition("<body>")[2]
    assert ('<div class="formula columns">' in page) == (cells is not None)
    assert all(cell in page for cell in cells or ())


def test_a_page_is_self_contained_and_values_cannot_inject_markup(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(b"\x89PNG")

    page = to_html("# T <b>\n\n![x](a%20b.png)\n<script>alert(1)</script> <img src=x onerror=y>\n", tmp_path, "zh")

    assert 'src="data:image/png;base64,iVBORw=="' in page
    assert "<script" not in page
    assert "<img src=x" not in page
    assert '<html lang="zh-CN">' in page
    assert "<title>T &lt;b&gt;</title>" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    with pytest.raises(TemplateError, match=r"gone.png: no such file"):
        to_html("![x](gone.png)", tmp_path, "en")


ARMS = {"spread": "arms", "judged_together": 2}
PAIRS: list[dict[str, object]] = [
    {"candidate": "other", "p_holm": 0.4, "speedup": 1.01, "ci_joint": [0.98, 1.04], **ARMS},
    {"candidate": "partition", "p_holm": 0.0002, "faster": "partition", "ci_joint": [1.21, 1.29], **ARMS},
    {"baseline": "partition", "candidate": "other", "speedup": 0.5, "p_holm": 0.031, "faster": "partition",
     "spread": "arms", "ci_joint": [0.4, 0.625]},
]  # fmt: skip


def rows(text: str) -> list[list[str]]:
    """Cells of the table of pairs; none where the report has none."""
    heading = load_template("en").labels["headings.told_apart"]
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if heading in line and line.startswith("|")]
    if not starts:
        return []
    end = lines.index("", starts[0])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[starts[0] + 2 : end]]


def test_every_pair_stands_once_the_faster_arm_first(reported: Reported) -> None:
    candidates = [{"ci_joint": [1.21, 1.29], "judged_together": 2}, {"candidate": "other", "judged_together": 2}]
    subject = reported(*candidates, pairs=PAIRS)
    text = render(subject)
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
    found = facts(subject)
    assert found["method"]["spread"] == "arms" and found["analysis.other_pairs"] == "1"


def test_p_values_of_a_pooled_spread_are_not_shown(reported: Reported) -> None:
    """Earlier versions kept them: they tell equal arms apart where one arm spreads more."""
    pooled = [{**pair, "spread": "pooled"} for pair in PAIRS]
    assert rows(render(reported({}, {"candidate": "other"}, pairs=pooled))) == []


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


def test_an_unknown_question_of_a_later_version_is_told(reported: Reported) -> None:
    with pytest.raises(UsageError, match="'cooling': no such question"):
        reported({}, question="cooling")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("question", ["sync", None])
def test_samples_without_lengths_are_not_called_tokens(reported: Reported, question: str | None, language: str) -> None:
    rates: dict[str, object] = {"throughput_tokens_per_s": {"mean": None}, "padding_ratio": None}
    rates["throughput_samples_per_s"] = {"mean": 320.0}
    of_samples = {"en": "samples", "zh": "样本"}[language]
    for workload, tokens in (("mlp", False), ("text_classification", True)):
        flags = {arm: {"workload.name": workload} for arm in ("static", "arm")}
        text = render(reported(ARM, summary=MEASURED | rates, flags=flags, question=question), language)
        said = re.findall(r".*real\s+token.*|.*真实 token.*", text, re.I)
        assert bool(said) == tokens, said
        assert of_samples in text
