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

Members = dict[str, bytes]
Change = Callable[[Members], object]


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


def test_equal_runs_give_equal_bytes_and_a_failed_write_leaves_nothing(
    run: Run, exported: Path, tmp_path: Path
) -> None:
    assert export_one(tmp_path / "again.zip", run).read_bytes() == exported.read_bytes()
    (tmp_path / "taken.zip").mkdir()
    for path in (tmp_path / "taken.zip", tmp_path / "no" / "such.zip"):
        with pytest.raises(UsageError):
            export_one(path, run)
    assert not list(tmp_path.glob(".*.tmp"))


def ending(members: Members, end: str) -> str:
    return next(name for name in members if name.endswith(end))


def manifest(**changes: object) -> Change:
    return lambda members: members.update({MANIFEST: json.dumps({**json.loads(members[MANIFEST]), **changes}).encode()})


def member(end: str, content: bytes) -> Change:
    return lambda members: members.update({ending(members, end): content})


def added(name: str, content: bytes = b"x") -> Change:
    return lambda members: members.update({name: content})


def renamed(members: Members) -> None:
    path = ending(members, "run.json")
    members[path] = json.dumps({**json.loads(members[path]), "name": "\x1b[2J"}).encode()


HOSTILE: dict[str, Change] = {
    "no manifest": lambda members: members.pop(MANIFEST),
    "a later version": manifest(schema_version=5, kind="what later versions say"),
    "no version": manifest(schema_version=None, runs=3),
    "deep manifest": added(MANIFEST, b"[" * 100_000),
    "no run": manifest(runs=[], arms=None),
    "unknown run": manifest(runs=["other"], arms=None),
    "a run outside": manifest(runs=["../one"], arms=None),
    "an arm without runs": manifest(arms={"static": []}),
    "an arm with escapes": lambda members: manifest(arms={"\x1b[2J": json.loads(members[MANIFEST])["runs"]})(members),
    "up": added("../evil.csv"),
    "backslash": added("runs\\evil\\run.json"),
    "a log": added("runs/one/logs/rank_0.txt"),
    "a bomb of rows": member("rank_0.csv", b"0" * 50_000_000),
    "a bomb of a record": member("env.json", b" " * 20_000_000 + b"{}"),
    "deep record": member("env.json", b"[" * 100_000 + b"]" * 100_000),
    "not a record": member("run.json", b"{}"),
    "no rows": lambda members: members.pop(ending(members, "rank_0.csv")),
    "a name with escapes": renamed,
}
SAID = {
    "a later version": "has schema version 5, this dynbench reads up to 4",
    "a bomb of rows": "would unpack to 50,0",
}
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
def test_a_hostile_file_is_one_line_and_leaves_nothing(fault: str, exported: Path, refused: Refused) -> None:
    with ZipFile(exported) as file:
        members = {name: file.read(name) for name in file.namelist()}
    HOSTILE[fault](members)
    with ZipFile(exported, "w", ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    assert SAID.get(fault, "") in refused()


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
        file.writestr(ending(dict.fromkeys(file.namelist(), b""), "run.json"), "{}")
    refused()


def test_profiles_are_exported_without_their_traces(
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
