"""Exported files that somebody else made: whatever is wrong with one, it is one line and nothing lies anywhere."""

from __future__ import annotations

import json
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import pytest

from dynbench.cli.main import main
from dynbench.config.schema import Config, dump_config
from dynbench.errors import UsageError
from dynbench.runs.atomic import write_json
from dynbench.runs.export import MANIFEST, Manifest, open_export, record_files, write_export
from dynbench.runs.records import COMM_COLUMNS, read_columns, write_columns
from dynbench.runs.run import Run


@pytest.fixture
def run(run: Run) -> Run:
    run.config_file.write_text(dump_config(Config()), encoding="utf-8")
    write_json(run.env_file, {"host": "h"})
    run.rank_file(0).write_text("step,rank\n0,0\n", encoding="utf-8")
    write_columns(run.ranks_dir, COMM_COLUMNS)
    run.update(status="failed")
    return run


def export_one(path: Path, run: Run) -> Path:
    manifest = Manifest(runs=[run.id], arms={"static": [run.id]}, stored=None)
    write_export(path, manifest, {run.id: {**record_files(run), "ranks/rank_0.csv": run.rank_file(0)}})
    return path


@pytest.fixture
def exported(run: Run, tmp_path: Path) -> Path:
    return export_one(tmp_path / "base.zip", run)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    return room


def test_what_is_exported_comes_back_and_is_gone_afterwards(run: Run, exported: Path, room: Path) -> None:
    with open_export(exported) as found:
        (back,) = found.runs
        assert found.arms == {"static": [back]} and found.holds(back) and not found.holds(run)
        assert (back.id, back.record(), back.config(), back.env()) == (run.id, run.record(), run.config(), run.env())
        assert back.rank_file(0).read_text() == run.rank_file(0).read_text()
        assert read_columns(back.ranks_dir) == read_columns(run.ranks_dir) != {}
        assert {path.name for path in back.path.iterdir()} == {"run.json", "config.yaml", "env.json", "ranks"}
    assert list(room.iterdir()) == []


def test_equal_runs_give_equal_bytes_and_a_failed_write_leaves_none(run: Run, exported: Path, tmp_path: Path) -> None:
    assert export_one(tmp_path / "again.zip", run).read_bytes() == exported.read_bytes()
    (tmp_path / "taken.zip").mkdir()
    for path in (tmp_path / "taken.zip", tmp_path / "no" / "such.zip"):
        with pytest.raises(UsageError):
            export_one(path, run)
    assert not list(tmp_path.glob(".*.tmp"))


HOSTILE: dict[str, tuple[str, bytes | dict[str, object] | None]] = {
    "no manifest": (MANIFEST, None),
    "a later version": (MANIFEST, {"schema_version": 5, "kind": "what later versions say"}),
    "no version": (MANIFEST, {"schema_version": None, "runs": 3}),
    "deep manifest": (MANIFEST, b"[" * 100_000),
    "no run": (MANIFEST, {"runs": [], "arms": None}),
    "unknown run": (MANIFEST, {"runs": ["other"], "arms": None}),
    "a run outside": (MANIFEST, {"runs": ["../one"], "arms": None}),
    "an arm without runs": (MANIFEST, {"arms": {"static": []}}),
    "an arm with escapes": (MANIFEST, {"arms": {"\x1b[2J": ["RUN"]}}),
    "backslash": ("runs\\evil\\run.json", b"x"),
    "a log": ("runs/one/logs/rank_0.txt", b"x"),
    "a bomb of a record": ("env.json", b" " * 20_000_000 + b"{}"),
    "deep record": ("env.json", b"[" * 100_000 + b"]" * 100_000),
    "not a record": ("run.json", b"{}"),
    "no rows": ("rank_0.csv", None),
    "a name with escapes": ("run.json", {"name": "\x1b[2J"}),
}
"""The end of a member's name, and what it holds instead: other bytes, changed JSON, or nothing where it is gone."""
Refused = Callable[[], str]


@pytest.fixture
def refused(exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Asks both commands to read the exported file: each says in a line why not, and nothing lies anywhere."""

    def refuse() -> str:
        before = {found for found in tmp_path.rglob("*") if found != room}
        messages = []
        for arguments in (["analyze", str(exported)], ["analyze", "mine", "--against", str(exported)]):
            assert main([*arguments, "--results", str(tmp_path / "results")]) == 2
            err = capsys.readouterr().err
            assert err.startswith("error: ") and "\nhint: " in err and "\x1b" not in err and err.count("\n") == 2
            assert str(exported) in err and str(room) not in err
            messages.append(err)
        assert list(room.iterdir()) == []
        assert {found for found in tmp_path.rglob("*") if found != room} == before
        return messages[0]

    return refuse


@pytest.mark.slow
@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_file_is_one_line_and_leaves_nothing(fault: str, run: Run, exported: Path, refused: Refused) -> None:
    with ZipFile(exported) as file:
        members = {name: file.read(name) for name in file.namelist()}
    end, content = HOSTILE[fault]
    name = next((each for each in members if each.endswith(end)), end)
    if isinstance(content, dict):
        content = json.dumps(json.loads(members[name]) | content).replace("RUN", run.id).encode()
    with ZipFile(exported, "w", ZIP_DEFLATED) as file:
        for each, found in (members | {name: content}).items():
            if found is not None:
                file.writestr(each, found)
    said = refused()
    assert fault != "a later version" or "has schema version 5, this dynbench reads up to 4" in said


def test_a_torn_or_changed_file(exported: Path, refused: Refused) -> None:
    whole = exported.read_bytes()
    changed = whole[:-1000] + bytes([whole[-1000] ^ 0xFF]) + whole[-999:]
    torn = [whole[: int(part * len(whole))] for part in (0, 0.1, 0.5, 0.999)]
    for content in (*torn, b"not a zip at all", b"PK\x03\x04", changed):
        exported.write_bytes(content)
        refused()


def test_links_and_names_that_stand_twice_are_refused(exported: Path, refused: Refused) -> None:
    link, whole = ZipInfo("runs/linked/run.json"), exported.read_bytes()
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with ZipFile(exported, "a", ZIP_STORED) as file:
        file.writestr(link, "/etc/passwd")
    assert "runs/linked/run.json" in refused()
    exported.write_bytes(whole)
    with ZipFile(exported, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr(next(name for name in file.namelist() if name.endswith("run.json")), "{}")
    refused()


def test_profiles_go_without_their_traces(
    run: Run, tmp_path: Path, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.profiler_dir.mkdir()
    for name in ("profile_0.json", "rank_0.pt.trace.json"):
        (run.profiler_dir / name).write_text("{}", encoding="utf-8")
    path = tmp_path / "profiled.zip"
    assert main(["runs", "export", "mine", "-o", str(path), "--results", str(tmp_path / "results")]) == 0
    assert "traces of mine" in capsys.readouterr().out
    with open_export(path) as found:
        (back,) = found.runs
        assert [each.name for each in back.profiler_dir.iterdir()] == ["profile_0.json"]
