"""What a stranger wrote into records is text in a report: no HTML, no link, no picture of a file of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dynbench.experiment.report_formats import all_quoted, quoted
from dynbench.experiment.report_input import read_report_input
from dynbench.experiment.reporting import render_report
from dynbench.report import TemplateError
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

EVIL = "x<script>alert(1)</script> ](javascript:alert(1)) ![p](/etc/passwd) | `b` \x1b[31m\n\n[r]: /etc/passwd\n# head"


def test_markup_is_shown_as_it_stands() -> None:
    assert quoted("<b>&amp;") == "&lt;b>&amp;"
    assert quoted("a < b <= c") == "a < b <= c"
    assert quoted("[x](y) [x][y] [x]: y") == r"[x\](y) [x\][y] [x\]: y"
    assert quoted("[1.2, 1.3] of [0, 1]") == "[1.2, 1.3] of [0, 1]"
    assert quoted("\x1b[31m a\n\n# b") == r"\x1b[31m a # b"


def test_every_text_of_a_record_is_quoted() -> None:
    found = all_quoted({"<a>": ["<b>", ("<c>", 1, None, True)], "p": Phrase("<d>", "say", name="<e>")})
    assert found["&lt;a>"] == ["&lt;b>", ("&lt;c>", 1, None, True)]
    phrase = found["p"]
    assert isinstance(phrase, Phrase) and (phrase, phrase.say, phrase.values) == ("&lt;d>", "say", {"name": "&lt;e>"})


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
