"""`dynbench report`: where it writes and what it refuses."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from compared import compared
from said import Cli

from dynbench.report import templates_dir
from dynbench.runs.atomic import write_json
from dynbench.runs.store import RunStore


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A registry with one comparison without runs worth the name."""
    store = RunStore(tmp_path / "results")
    run = store.create("train", "static")
    folder = store.create("analyze", "comparison", name="demo")
    found = compared(candidate="other", verdict="ESTIMATE", speedup=1.5, ci95=None).model_dump(mode="json")
    arms = [{"name": "static", "runs": [run.id]}]
    content = {"runs": [{"id": run.id, "name": None, "summary": {}}], "arms": arms, "comparisons": [found]}
    write_json(folder.path / "comparison.json", {**content, "checks": [], "figures": []})
    return store


@pytest.fixture
def report(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Cli:
    """`dynbench report` in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda line="", code=0: cli(f"report {line} --results {store.root}", code=code)


STARTS = {
    "x.md": "# ",
    "x.txt": "# ",
    "x": "# ",
    "new/x.HTM": '<!doctype html>\n<html lang="zh-CN">',
}


@pytest.mark.parametrize("name", STARTS)
def test_the_suffix_decides_the_format_and_folders_are_made(report, name):
    report(f"demo --lang zh -o {name}")
    assert Path(name).read_text(encoding="utf-8").startswith(STARTS[name])


def test_a_page_has_the_tables_and_contents_of_its_markdown(report):
    for name in ("x.md", "x.html"):
        report(f"demo --lang zh -o {name}")
    markdown, page = (Path(name).read_text(encoding="utf-8") for name in ("x.md", "x.html"))
    assert page.count('<a class="h') == page.count("<h2") + page.count("<h3") > 9
    assert page.count("<tr>") == len(re.findall(r"^\|(?! *:?-)", markdown, re.M))
    assert page.count("<table>") == page.count('<div class="scroll"><table>') > 0
    assert not re.search(r"> [，。；：、]|[，。；：、]</strong> ", page)


def test_the_next_step_names_what_was_named(report, store, cli):
    """A copy beside a registry that has another comparison of that name: the command makes the copy's page."""
    shutil.copytree(store.resolve("demo").path, "my copy")
    label, _, line = report("'./my copy' --lang zh").lines[-1].partition(" dynbench ")
    assert label.strip() == "next"
    cli(line)
    assert Path("my copy/report.zh.html").is_file()


def test_the_next_step_has_the_options_of_this_one(report, store, cli):
    """The comparison that was the latest, a template of one's own, and the folder that was named."""
    shutil.copy(templates_dir() / "template.en.md", "my template.md")
    said = report("-o 'there is/x.md' --template 'my template.md'")
    words = shlex.split(said.lines[-1])[2:]
    assert words[:2] == ["report", "demo"] and words[-2:] == ["--results", str(store.root)]
    assert words[words.index("--template") + 1] == "my template.md"
    store.create("analyze", "comparison")
    cli(*words)
    assert Path("there is/x.html").is_file()


def test_the_first_page_is_printed_or_written(report, store):
    page = report("demo --short").out
    assert page.startswith("# ") and "| other |" in page and "## " not in page
    report("demo --short -o x.md")
    assert Path("x.md").read_text(encoding="utf-8") == page
    report("demo --short --format html")
    assert (store.resolve("demo").path / "report.short.en.html").is_file()


@pytest.mark.parametrize("opens", [True, False])
def test_a_page_is_opened_in_the_browser(report, store, monkeypatch, opens):
    browser = Mock(return_value=opens)
    monkeypatch.setattr("webbrowser.open", browser)
    assert ("no browser" in report("demo --open").err) == (not opens)
    page = store.resolve("demo").path / "report.en.html"
    assert page.is_file()
    browser.assert_called_once_with(page.resolve().as_uri())


def test_planning_needs_the_runs(report, store):
    (run,) = (run for run in store.list() if run.record().command == "train")
    shutil.rmtree(run.path)
    assert "--solve: the run folders of static are not here" in report("demo --solve", code=2).err


def test_what_did_not_train_has_no_report(report, store):
    run = store.create("bench", "collectives")
    run.ranks_dir.mkdir(exist_ok=True)
    (run.ranks_dir / "rank_0.log").write_text("measured\n")
    assert "Report on a comparison or a training run" in report(run.id, code=2).err
