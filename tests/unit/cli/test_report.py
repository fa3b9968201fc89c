"""`dynbench report`: where it writes and what it refuses."""

from __future__ import annotations

import json
import shlex
import shutil
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


def test_the_suffix_tells_the_format_and_folders_are_made(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "page.html"

    assert main(["report", "demo", "--lang", "zh", "-o", str(output), "--json", "--results", str(results)]) == 0

    assert json.loads(capsys.readouterr().out)["path"] == str(output)
    assert output.read_text(encoding="utf-8").startswith('<!doctype html>\n<html lang="zh-CN">')


def test_a_dash_and_json_are_too_much_for_one_stdout(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "-o", "-", "--json", "--results", str(results)]) == 2

    assert "both want stdout" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert not Path("-").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "x.pdf"), "-o x.pdf: .pdf does not fit"),
        (("-o", "x.docx", "--format", "md"), "-o x.docx: .docx does not fit"),
        (("-o", "x.html", "--format", "md"), "--format md writes another format"),
        (("-o", "x.md", "--format", "html"), "--format html writes another format"),
    ],
)
def test_a_suffix_of_another_format_is_refused(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments, "--results", str(results)]) == 2

    assert said in capsys.readouterr().err
    assert not Path(arguments[1]).exists()


@pytest.mark.parametrize(("name", "start"), [("x.md", "# "), ("x.txt", "# "), ("x", "# "), ("x.HTM", "<!doctype")])
def test_known_suffixes_and_none_are_written(results: Path, tmp_path: Path, name: str, start: str) -> None:
    assert main(["report", "-o", str(tmp_path / name), "--results", str(results)]) == 0

    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


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


def test_the_next_step_keeps_what_was_asked_for(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comparison that was the latest, a template of one's own, and the folder that was named."""
    template = tmp_path / "my template.md"
    template.write_text(
        (Path(__file__).resolve().parents[3] / "report" / "template.en.md").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    output = ["-o", str(tmp_path / "there is" / "x.md")]
    assert main(["report", *output, "--template", str(template), "--results", str(results)]) == 0

    words = shlex.split(capsys.readouterr().out.splitlines()[-1])[2:]
    assert words[:2] == ["report", "demo"]
    assert words[words.index("--template") + 1] == str(template)
    assert words[-2:] == ["--results", str(results)]
    RunStore(results).create("analyze", "comparison")
    assert main(words) == 0
    assert (tmp_path / "there is" / "x.html").is_file()


def test_the_first_page_is_printed_or_written_where_that_is_asked_for(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "demo", "--short", "--results", str(results)]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# Waiting for the slowest rank\n") and "| other |" in page and "## " not in page
    assert main(["report", "demo", "--short", "-o", str(tmp_path / "x.md"), "--results", str(results)]) == 0
    assert (tmp_path / "x.md").read_text(encoding="utf-8") == page
    assert main(["report", "demo", "--short", "--format", "html", "--results", str(results)]) == 0
    assert (RunStore(results).resolve("demo").path / "report.short.en.html").is_file()


@pytest.mark.parametrize("opens", [True, False])
def test_a_page_is_opened_in_the_browser(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], opens: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or opens)
    assert main(["report", "demo", "--open", "--results", str(results)]) == 0
    page = RunStore(results).resolve("demo").path / "report.en.html"
    assert page.is_file() and opened == [page.resolve().as_uri()]
    assert ("no browser" in capsys.readouterr().err) == (not opens)
    assert main(["report", "demo", "--open", "--format", "md", "--results", str(results)]) == 2


def test_planning_needs_the_runs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(results)
    for run in store.list():
        if run.record().command == "train":
            shutil.rmtree(run.path)

    assert main(["report", "demo", "--solve", "--results", str(results)]) == 2

    assert "--solve: the run folders of static are not here" in capsys.readouterr().err


def test_what_did_not_train_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunStore(tmp_path).create("bench", "collectives")
    run.ranks_dir.mkdir(exist_ok=True)
    (run.ranks_dir / "rank_0.log").write_text("measured\n")
    assert main(["report", run.id, "--results", str(tmp_path)]) == 2
    assert "Report on a comparison or a training run" in capsys.readouterr().err
