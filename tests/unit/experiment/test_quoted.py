"""What a stranger wrote into records is text in a report: no HTML, no link, no picture of a file of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dynbench.experiment.report_input import read_report_input
from dynbench.experiment.reporting import render_report
from dynbench.report import TemplateError, load_template, substitute
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.table_text import Markdown, pipes, quoted

EVIL = "x<script>alert(1)</script> ](javascript:alert(1)) ![p](/etc/passwd) | `b` \x1b[31m\n\n[r]: /etc/passwd\n# head"


def test_markup_is_shown_as_it_stands() -> None:
    assert quoted("<b>&amp;") == "&lt;b>&amp;"
    assert quoted("a < b <= c") == "a < b <= c"
    assert quoted("[x](y) [x][y] [x]: y") == r"[x\](y) [x\][y] [x\]: y"
    assert quoted("[1.2, 1.3] of [0, 1]") == "[1.2, 1.3] of [0, 1]"
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
def test_a_comparison_full_of_markup(
    store: RunStore, make_comparison: Callable[..., Run], tmp_path: Path, language: str
) -> None:
    folder = make_comparison(
        {"candidate": "evil", "reason": EVIL, "left_out": [EVIL]},
        checks=[{"severity": "warn", "seen": EVIL, "limit": EVIL, "hint": EVIL, "id": "noise"}],
        summary={"policy": EVIL, "dataset": EVIL},
    )
    path = folder.path / "comparison.json"
    record = json.loads(path.read_text())
    record["arms"][1]["name"] = record["comparisons"][0]["candidate"] = EVIL
    kept = {
        item["id"]: {"status": EVIL, "config": {"workload.dataset": EVIL}, "env": {"host": EVIL, "cpu_model": EVIL}}
        for item in record["runs"]
    }
    path.write_text(json.dumps(record))
    (folder.path / "runs.json").write_text(json.dumps({"runs": kept, "probes": {}}))
    subject = read_report_input(store, folder)

    markdown = render_report(subject, language, "md", folder.path)  # type: ignore[arg-type]
    page = render_report(subject, language, "html", folder.path)  # type: ignore[arg-type]

    assert "alert(1)" in markdown, "it is said"
    assert not re.search(r"(?m)<script|(?<!\\)\]\((?:javascript|/etc)|\x1b|^# head|^\[r\]:", markdown)
    assert "<script" not in page and "\x1b" not in page
    assert not re.search(r'(?:href|src)="(?!data:image/|#|https://doi|https://arxiv|data:,)[^"]*"', page)


def test_only_pictures_are_put_into_a_page(store: RunStore, make_comparison: Callable[..., Run]) -> None:
    folder = make_comparison({})
    (folder.figures_dir / "timeline.png").write_text("root:x:0:0")
    with pytest.raises(TemplateError, match="is no picture"):
        render_report(read_report_input(store, folder), "en", "html", folder.path)


def test_pictures_that_lie_elsewhere_are_left_out(
    store: RunStore, make_comparison: Callable[..., Run], tmp_path: Path
) -> None:
    folder = make_comparison({})
    mine = tmp_path / "holiday.png"
    mine.write_bytes((folder.figures_dir / "timeline.png").read_bytes())
    path = folder.path / "comparison.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"figures": [*record["figures"], str(mine)]}))
    assert [figure.stem for figure in read_report_input(store, folder).figures] == ["timeline", "unheard_of"]


@pytest.mark.parametrize("name", ["a (1) <b>", "x](y)", "50%20off"])
def test_figures_of_a_folder_of_any_name_are_found(
    store: RunStore, make_comparison: Callable[..., Run], name: str
) -> None:
    folder = make_comparison({})
    moved = folder.path.rename(store.root / name)
    page = render_report(read_report_input(store, Run(moved)), "en", "html", store.root.parent)
    assert page.count('src="data:image/png') == 2
