from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import click
import pytest

from dynbench.cli.main import main
from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "results"))
    return RunStore(tmp_path / "results")


def make(store: RunStore, name: str, status: str = "completed") -> Run:
    run = store.create("train", "dynamic", name=name)
    config = load_config(None, [], {"schedule.policy": "prefix", "launch.launcher": "torchrun", "launch.nproc": "2"})
    run.config_file.write_text(dump_config(config))
    write_json(run.env_file, {"host": "h", "packages": {"torch": "9.9"}, "cpu_governor": None})
    run.update(status="running")
    if status == "failed":
        failure = {"kind": "worker", "message": "rank 1 ended with exit code 7", "rank": 1, "log": "logs/r1.err"}
        run.update(status="failed", exit_code=3, failure=failure, warnings=["spread is 12 %, limit 10 %"])
    elif status != "running":
        run.update(status=status, exit_code=0)
    return run


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def test_ls_survives_malformed_runs(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    good, torn, no_config = make(store, "a"), make(store, "b"), make(store, "c")
    torn.record_file.write_text("{")
    no_config.config_file.write_text("nonsense: [")
    assert main(["runs", "ls", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["id"]: row for row in json.loads(out)["runs"]}
    assert set(rows) == {good.id, no_config.id}
    assert rows[no_config.id]["policy"] is None
    assert err.startswith("warning: ")
    assert str(torn.record_file) in err


def test_show_of_a_bare_run_says_what_is_missing(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.create("train", "static", name="bare")
    text = printed(capsys, "runs", "show", "bare")
    assert "configuration: " in text
    assert "environment: " in text
    assert json.loads(printed(capsys, "runs", "show", "bare", "--json"))["env"] is None


def test_show_of_a_lost_run(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(store, "a", "running")
    data = json.loads(run.record_file.read_text())
    run.record_file.write_text(json.dumps(data | {"pid_start": "00000000:1"}))
    assert json.loads(printed(capsys, "runs", "show", "a", "--json"))["run"]["status"] == "lost"


def test_rm_removes_several_and_the_failed(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c, d = make(store, "a"), make(store, "b"), make(store, "c", "failed"), make(store, "d")
    shown = json.loads(printed(capsys, "runs", "rm", "a", b.id, "a", "--failed", "--yes", "--json"))
    assert shown["removed"] == [a.id, b.id, c.id]
    assert store.list() == [d]
    assert printed(capsys, "runs", "rm", "--failed", "--yes") == "Nothing to remove.\n"


def test_rm_removes_nothing_when_one_cannot_go(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    make(store, "a")
    make(store, "b", "running")
    printed(capsys, "runs", "rm", "a", "b", "--yes", code=2)
    printed(capsys, "runs", "rm", "a", "nothing", "--yes", code=2)
    assert len(store.list()) == 2
    printed(capsys, "runs", "rm", "a", "b", "--yes", "--force")
    assert store.list() == []


def test_rm_asks_and_needs_a_terminal_to_ask(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, "a")
    assert main(["runs", "rm", "a"]) == 2
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: (_ for _ in ()).throw(click.Abort()))
    assert main(["runs", "rm", "a"]) == 130
    assert len(store.list()) == 1
    monkeypatch.setattr(click, "confirm", lambda *_, **__: True)
    assert main(["runs", "rm", "a"]) == 0
    assert store.list() == []


@pytest.mark.parametrize("ref", ["..", ".", "", "./foreign", "../foreign", "{root}/foreign", "{root}/{id}", "{id}/"])
def test_rm_takes_no_path(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ref: str
) -> None:
    run = make(store, "a")
    monkeypatch.chdir(store.root)
    for folder in (store.root / "foreign", store.root.parent / "foreign", store.root.parent, store.root):
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(run.record_file.read_text())
    before = sorted(store.root.parent.rglob("*"))
    printed(capsys, "runs", "rm", ref.format(root=store.root, id=run.id), "--yes", "--force", code=2)
    assert sorted(store.root.parent.rglob("*")) == before


def test_rm_of_the_failed_leaves_what_is_no_run_of_the_registry(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = make(store, "a", "failed")
    shutil.copytree(failed.path, store.root / "copy")
    (store.root / "linked").symlink_to(failed.path, target_is_directory=True)
    (store.root / "notes").mkdir()
    assert main(["runs", "rm", "--failed", "--yes", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["removed"] == [failed.id]
    assert sorted(path.name for path in store.root.iterdir() if not path.name.startswith(".")) == [
        "copy",
        "linked",
        "notes",
    ]
    for name in ("copy", "linked"):
        assert f"{store.root / name}: " in err and "leaves it alone" in err
    assert "notes" not in err
