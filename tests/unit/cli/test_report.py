"""`dynbench report`: where it writes and what it refuses."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from compared import compared

from dynbench.cli.main import main
from dynbench.runs.atomic import write_json
from dynbench.runs.store import RunStore


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A registry with one comparison without runs worth the name."""
    store = RunStore(tmp_path / "results")
    run = store.create("train", "static")
    folder = store.create("analyze", "comparison", name="demo")
    comparison = compared(candidate="other", verdict="ESTIMATE", speedup=1.5, ci95=None)
    write_json(
        folder.path / "comparison.json",
        {
            "runs": [{"id": run.id, "name": None, "summary": {}}],
            "arms": [{"name": "static", "runs": [run.id]}],
            "comparisons": [comparison.model_dump(mode="json")],
            "checks": [],
            "figures": [],
        },
    )
    return store.root


Report = Callable[..., int]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def report(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """`dynbench report` in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *words: main(["report", *words, "--results", str(results)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-o - --json", "both want stdout"),
        ("-o x.pdf", "-o x.pdf: .pdf does not fit"),
        ("-o x.html --format md", "--format md writes another format"),
        ("-o x.md --format html", "--format html writes another format"),
        ("demo --open --format md", "--open shows an HTML page"),
    ],
)
def test_what_does_not_fit_is_refused(report: Report, capsys: Output, words: str, said: str) -> None:
    assert report(*words.split()) == 2
    assert said in capsys.readouterr().err and list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "start"),
    [("x.md", "# "), ("x.txt", "# "), ("x", "# "), ("new/x.HTM", '<!doctype html>\n<html lang="zh-CN">')],
)
def test_the_suffix_decides_the_format_and_folders_are_made(report: Report, name: str, start: str) -> None:
    assert report("demo", "--lang", "zh", "-o", name) == 0
    assert Path(name).read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_next_step_names_what_was_named(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lang: str
) -> None:
    """A copy beside a registry that has another comparison of that name: the command makes the copy's page."""
    copy = tmp_path / "my copy"
    shutil.copytree(RunStore(results).resolve("demo").path, copy)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "./my copy", "--lang", lang, "--results", str(results)]) == 0

    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command[:3] == ["next", "dynbench", "report"]
    assert main(command[2:]) == 0
    assert (copy / f"report.{lang}.html").is_file()


def test_the_next_step_has_the_options_of_this_one(report: Report, results: Path, capsys: Output) -> None:
    """The comparison that was the latest, a template of one's own, and the folder that was named."""
    shipped = Path(__file__).resolve().parents[3] / "report" / "template.en.md"
    shutil.copy(shipped, "my template.md")
    assert report("-o", "there is/x.md", "--template", "my template.md") == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])[2:]
    assert words[:2] == ["report", "demo"] and words[-2:] == ["--results", str(results)]
    assert words[words.index("--template") + 1] == "my template.md"
    RunStore(results).create("analyze", "comparison")
    assert main(words) == 0 and Path("there is/x.html").is_file()


def test_the_first_page_is_printed_or_written(report: Report, results: Path, capsys: Output) -> None:
    assert report("demo", "--short") == 0
    page = capsys.readouterr().out
    assert page.startswith("# Waiting for the slowest rank\n") and "| other |" in page and "## " not in page
    assert report("demo", "--short", "-o", "x.md") == 0
    assert Path("x.md").read_text(encoding="utf-8") == page
    assert report("demo", "--short", "--format", "html") == 0
    assert (RunStore(results).resolve("demo").path / "report.short.en.html").is_file()


@pytest.mark.parametrize("opens", [True, False])
def test_a_page_is_opened_in_the_browser(
    report: Report, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, opens: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or opens)
    assert report("demo", "--open") == 0
    page = RunStore(results).resolve("demo").path / "report.en.html"
    assert page.is_file() and opened == [page.resolve().as_uri()]
    assert ("no browser" in capsys.readouterr().err) == (not opens)


def test_planning_needs_the_runs(report: Report, results: Path, capsys: Output) -> None:
    for run in RunStore(results).list():
        if run.record().command == "train":
            shutil.rmtree(run.path)
    assert report("demo", "--solve") == 2
    assert "--solve: the run folders of static are not here" in capsys.readouterr().err


def test_what_did_not_train_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunStore(tmp_path).create("bench", "collectives")
    run.ranks_dir.mkdir(exist_ok=True)
    (run.ranks_dir / "rank_0.log").write_text("measured\n")
    assert main(["report", run.id, "--results", str(tmp_path)]) == 2
    assert "Report on a comparison or a training run" in capsys.readouterr().err
