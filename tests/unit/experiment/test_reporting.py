"""Reports from made-up comparisons, and from what a stranger wrote into records.

That is text in a report: no HTML, no link, no picture of a file of this machine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from languages import facts
from pixel import png
from unit.experiment.conftest import MakeComparison, Reported

from dynbench.errors import RecordError, RunLookupError, UsageError
from dynbench.experiment.report_input import Member, find_report_input, mean_of, read_report_input
from dynbench.experiment.reporting import render_report, to_html, write_report
from dynbench.report import LANGUAGES, TemplateError, load_template, substitute
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.table_text import Markdown, pipes, quoted


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
def test_the_first_page_stands_before_the_contents_which_link_every_heading(reported: Reported, language: str) -> None:
    subject = reported({})
    whole, short = (render_report(subject, language, "md", subject.run.path, short=each) for each in (False, True))
    assert whole.startswith(short.rstrip()) and "timeline.png" in short and "| partition |" in short
    assert "\n## " not in short
    page, first = (render_report(subject, language, "html", subject.run.path, short=each) for each in (False, True))
    links = re.findall(r"\]\(#(.+)\)", whole)
    assert len(links) == len(set(links)) == len(re.findall("^###? ", whole, re.M)) - 1
    assert links == re.findall('<h[23] id="(.+?)"', page) == list(map(unquote, re.findall('href="#(.+?)"', page)))
    assert "<nav" in page and "<nav" not in first


def test_an_own_template_is_used(reported: Reported, tmp_path: Path) -> None:
    subject, own = reported({}), tmp_path / "own.md"
    own.write_text("# {{ best.name }}: {{ best.speedup }}\n", encoding="utf-8")
    assert render_report(subject, "en", "md", tmp_path, own) == "# `partition`: 1.250\n"


def test_the_latest_comparison_is_taken_or_how_to_make_one_is_said(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    bare = store.create("train", "static")
    with pytest.raises(RunLookupError) as caught:
        find_report_input(store, None)
    assert "dynbench compare" in caught.value.hint
    with pytest.raises(RecordError, match="neither a comparison nor"):
        find_report_input(store, bare.id)

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


def test_partial_runs_are_left_out_of_means() -> None:
    whole, partial = Member("a", "a", {"x": 2.0}, None), Member("b", "b", {"x": 9.0, "partial": True}, None)
    assert mean_of([whole, partial], "x") == 2.0
    assert mean_of([partial], "x") == 9.0


def test_work_names_the_two_arms_and_says_what_the_hashes_say(reported: Reported) -> None:
    works = [("FASTER", "step", "step"), ("FASTER", "stream", "stream"), ("INCOMPARABLE", "stream", "different")]
    for verdict, level, work in (*works, *(("INCOMPARABLE", level, level) for level in ("step", "window"))):
        assert facts(reported({"verdict": verdict, "level": level}))["method"]["work"] == work
    assert facts(reported({"aa": True}))["method"]["work"] == "alike"


def test_trained_weights_are_held_against_each_other_where_they_were_kept(reported: Reported) -> None:
    def columns(*changes: dict[str, object]) -> int:
        table = str(facts(reported(*changes))["table.comparisons"])
        return table.partition("\n")[0].count("|") + ("2.5e-07" in table)

    kept = columns({"candidate": "two", "weights_max_diff": 2.5e-7}, {"candidate": "three"})
    assert kept == columns({"candidate": "two"}) + 2, "a column, and what is in it"


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

    for text in ('src="data:image/png;base64,iVBORw=="', '<html lang="zh-CN">', "<title>T &lt;b&gt;</title>"):
        assert text in page
    assert not re.search(r'<script|<img src=x|(?:src|href)="(?!data:)', page)
    with pytest.raises(TemplateError, match=r"gone.png: no such file"):
        to_html("![x](gone.png)", tmp_path, "en")


def test_p_values_of_a_pooled_spread_are_not_shown(reported: Reported) -> None:
    """Earlier versions kept them: they tell equal arms apart where one arm spreads more."""
    heading = load_template("en").labels["headings.told_apart"]
    for spread in ("arms", "pooled"):
        pairs = [{"candidate": name, "p_holm": 0.02, "spread": spread} for name in ("partition", "other")]
        subject = reported({}, {"candidate": "other"}, pairs=pairs)
        assert (f"| {heading} |" in render_report(subject, "en", "md", subject.run.path)) == (spread == "arms")


def test_an_unknown_question_of_a_later_version_is_told(reported: Reported) -> None:
    with pytest.raises(UsageError, match="'cooling': no such question"):
        reported({}, question="cooling")


EVIL = "x<script>alert(1)</script> ](javascript:alert(1)) ![p](/etc/passwd) | `b` \x1b[31m\n\n[r]: /etc/passwd\n# head"


def test_markup_is_shown_as_it_stands() -> None:
    for text in ("a < b <= c", "[1.2, 1.3] of [0, 1]"):
        assert quoted(text) == text
    assert quoted("<b>&amp; [x](y) [x][y] [x]: y") == r"&lt;b>&amp; [x\](y) [x\][y] [x\]: y"
    assert quoted("\x1b[31m a\n\n# b") == r"\x1b[31m a # b"


@pytest.mark.parametrize("text", ["[x](y)", r"[x\](y)", r"[x\\](y)", "<b>", "a\n\n# b", EVIL])
def test_quoting_twice_is_quoting_once(text: str) -> None:
    assert quoted(quoted(text)) == quoted(text)
    assert len(re.findall(r"(\\*)\]\(", quoted(text))[0]) % 2 == 1 if "](" in text else True


def test_what_templates_and_tables_put_out_is_quoted_once_and_markdown_is_not() -> None:
    template = load_template("en")
    values = {"evil": "<b>[x](y)", "arms": [{"name": "<i>"}], "table": Markdown("[x](y)\n\n<b>")}
    assert substitute(template, "{{ evil }} {{ arms[0].name|code }}", values) == r"&lt;b>[x\](y) `&lt;i>`"
    assert substitute(template, "{% set more %}{{ evil }}{% endset %}{{ more }}", values) == r"&lt;b>[x\](y)"
    assert substitute(template, "{{ table }}", values) == "[x](y)\n\n<b>"
    assert pipes([["<b>|[x](y)"]]) == r"| &lt;b>\|[x\](y) |"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_comparison_full_of_markup(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    folder = make_comparison(
        {"candidate": "evil", "reason": EVIL, "left_out": [EVIL]},
        checks=[{"severity": "warn", "seen": EVIL, "limit": EVIL, "hint": EVIL, "id": "noise"}],
        summary={"policy": EVIL, "dataset": EVIL},
    )
    path = folder.path / "comparison.json"
    record = json.loads(path.read_text())
    record["arms"][1]["name"] = record["comparisons"][0]["candidate"] = EVIL
    path.write_text(json.dumps(record))
    kept = {"status": EVIL, "config": {"workload.dataset": EVIL}, "env": {"host": EVIL, "cpu_model": EVIL}}
    runs = {item["id"]: kept for item in record["runs"]}
    (folder.path / "runs.json").write_text(json.dumps({"runs": runs, "probes": {}}))
    subject = read_report_input(store, folder)

    markdown = render_report(subject, language, "md", folder.path)  # type: ignore[arg-type]
    page = render_report(subject, language, "html", folder.path)  # type: ignore[arg-type]

    assert "alert(1)" in markdown, "it is said"
    assert not re.search(r"(?m)<script|(?<!\\)\]\((?:javascript|/etc)|\x1b|^# head|^\[r\]:", markdown)
    assert "<script" not in page and "\x1b" not in page
    assert not re.search(r'(?:href|src)="(?!data:image/|#|https://doi|https://arxiv|data:,)[^"]*"', page)


def test_only_pictures_are_put_into_a_page(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})
    (folder.figures_dir / "timeline.png").write_text("root:x:0:0")
    with pytest.raises(TemplateError, match="is no picture"):
        render_report(read_report_input(store, folder), "en", "html", folder.path)


def test_pictures_that_lie_elsewhere_are_left_out(
    store: RunStore, make_comparison: MakeComparison, tmp_path: Path
) -> None:
    mine = tmp_path / "holiday.png"
    mine.write_bytes(png())
    folder = make_comparison({}, figures=[str(mine)])
    assert read_report_input(store, folder).figures == []


@pytest.mark.parametrize("name", ["a (1) <b>", "x](y)", "50%20off"])
def test_figures_of_a_folder_of_any_name_are_found(store: RunStore, make_comparison: MakeComparison, name: str) -> None:
    folder = make_comparison({})
    moved = folder.path.rename(store.root / name)
    page = render_report(read_report_input(store, Run(moved)), "en", "html", store.root.parent)
    assert page.count('src="data:image/png') == 2
