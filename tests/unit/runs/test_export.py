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
from dynbench.config.digest import dump_config
from dynbench.config.schema import Config
from dynbench.errors import UsageError
from dynbench.runs.atomic import write_json
from dynbench.runs.columns import COMM_COLUMNS, read_columns, write_columns
from dynbench.runs.export import KIND, MANIFEST, MOST_RATIO, open_export, record_files, write_export
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Members = dict[str, bytes]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = RunStore(tmp_path / "results").create("train", "static", name="one")
    run.config_file.write_text(dump_config(Config()), encoding="utf-8")
    write_json(run.env_file, {"host": "h"})
    run.rank_file(0).write_text("step,rank\n0,0\n", encoding="utf-8")
    write_columns(run.ranks_dir, COMM_COLUMNS)
    run.update(status="running")
    run.update(status="completed")
    return run


def files_of(run: Run) -> dict[str, Path]:
    return {**record_files(run), "ranks/rank_0.csv": run.rank_file(0)}


@pytest.fixture
def exported(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "base.zip"
    write_export(path, {run.id: files_of(run)}, {}, {"static": [run.id]})
    return path


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


def test_equal_runs_give_equal_bytes(run: Run, exported: Path, tmp_path: Path) -> None:
    write_export(tmp_path / "again.zip", {run.id: files_of(run)}, {}, {"static": [run.id]})
    assert (tmp_path / "again.zip").read_bytes() == exported.read_bytes()


def test_a_file_that_cannot_be_written_leaves_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken.zip").mkdir()
    for path in (tmp_path / "taken.zip", tmp_path / "no" / "such.zip"):
        with pytest.raises(UsageError):
            write_export(path, {run.id: files_of(run)}, {}, None)
    assert not list(tmp_path.glob(".*.tmp"))


def rewritten(path: Path, change: Callable[[Members], None]) -> None:
    """The file with other members."""
    with ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with ZipFile(path, "w", ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)


def manifest(**changes: object) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        members[MANIFEST] = json.dumps({**json.loads(members[MANIFEST]), **changes}).encode()

    return change


def member(ending: str, content: bytes) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        members[next(name for name in members if name.endswith(ending))] = content

    return change


def added(name: str, content: bytes = b"x") -> Callable[[Members], None]:
    return lambda members: members.update({name: content})


def renamed(name: str) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        path = next(path for path in members if path.endswith("run.json"))
        members[path] = json.dumps({**json.loads(members[path]), "name": name}).encode()

    return change


HOSTILE = {
    "no manifest": lambda members: members.pop(MANIFEST),
    "empty": lambda members: members.clear(),
    "other kind": manifest(kind="something"),
    "newer": manifest(schema_version=5),
    "no version": manifest(schema_version=None, runs=3),
    "not an object": added(MANIFEST, b"[1]"),
    "deep manifest": added(MANIFEST, b"[" * 100_000),
    "no run": manifest(runs=[], arms=None),
    "unknown run": manifest(runs=["other"], arms=None),
    "a run outside": manifest(runs=["../one"], arms=None),
    "an arm without runs": manifest(arms={"static": []}),
    "an arm of others": manifest(arms={"static": ["other"]}),
    "an arm with escapes": lambda members: manifest(arms={"\x1b[2J": json.loads(members[MANIFEST])["runs"]})(members),
    "up": added("../evil.csv"),
    "up within": added("runs/../../evil/run.json"),
    "up as a run": added("runs/../run.json"),
    "absolute": added("/tmp/evil.csv"),
    "backslash": added("runs\\evil\\run.json"),
    "a log": added("runs/one/logs/rank_0.txt"),
    "a program": added("runs/one/evil.py"),
    "a pickle": added("runs/one/rows.pkl"),
    "a bomb of rows": member("rank_0.csv", b"0" * 50_000_000),
    "a bomb of a record": member("env.json", b" " * 20_000_000 + b"{}"),
    "deep record": member("env.json", b"[" * 100_000 + b"]" * 100_000),
    "nested record": member("env.json", b'{"a":' * 200 + b"1" + b"}" * 200),
    "not JSON": member("env.json", b"{"),
    "not an object as env": member("env.json", b"[]"),
    "not a record": member("run.json", b"{}"),
    "bytes as a record": member("run.json", b"\xff\xfe\x00"),
    "bytes as settings": member("config.yaml", b"\xff\xfe\x00"),
    "aliases": member("config.yaml", b"a: &a [1, 1]\nb: [*a, *a]\n"),
    "nested settings": member("config.yaml", b"[" * 10_000),
    "a tag": member("config.yaml", b"!!python/object/apply:os.system [true]\n"),
    "unknown settings": member("config.yaml", b"nothing: {of: this}\n"),
    "no rows": lambda members: members.pop(next(name for name in members if name.endswith("rank_0.csv"))),
    "a name with escapes": renamed("\x1b[2J"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_file_is_one_line_and_leaves_nothing(
    fault: str, exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(exported, HOSTILE[fault])
    refused(exported, room, tmp_path, capsys)


def refused(path: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    before = {found for found in tmp_path.rglob("*") if found != room}
    results = str(tmp_path / "results")
    messages = []
    for arguments in (["analyze", str(path)], ["analyze", "one", "--against", str(path)]):
        assert main([*arguments, "--results", results]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ") and "\nhint: " in err and "\x1b" not in err
        assert err.count("\n") == 2
        assert str(path) in err and str(room) not in err
        messages.append(err)
    assert list(room.iterdir()) == []
    assert {found for found in tmp_path.rglob("*") if found != room} == before
    return messages[0]


def test_a_later_version_is_named(
    exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(exported, manifest(schema_version=5, kind="what later versions say"))
    assert "has schema version 5, this dynbench reads up to 4" in refused(exported, room, tmp_path, capsys)


def test_a_bomb_is_told_by_its_sizes(
    exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(exported, HOSTILE["a bomb of rows"])
    assert MOST_RATIO * exported.stat().st_size < 50_000_000
    assert "would unpack to 50,0" in refused(exported, room, tmp_path, capsys)


@pytest.mark.parametrize("content", [b"", b"not a zip at all", b"PK\x03\x04"])
def test_a_file_of_another_kind(
    content: bytes, exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported.write_bytes(content)
    refused(exported, room, tmp_path, capsys)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(
    part: float, exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = exported.read_bytes()
    exported.write_bytes(content[: int(part * len(content))])
    refused(exported, room, tmp_path, capsys)


def test_a_changed_byte_is_seen(exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(exported.read_bytes())
    with ZipFile(exported) as file:
        place = next(info.header_offset for info in file.infolist() if info.filename.endswith("config.yaml"))
    content[place + 300] ^= 0xFF
    exported.write_bytes(content)
    refused(exported, room, tmp_path, capsys)


def test_a_link_is_refused(exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = ZipInfo("runs/linked/run.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with ZipFile(exported, "a", ZIP_STORED) as file:
        file.writestr(link, "/etc/passwd")
    assert "runs/linked/run.json" in refused(exported, room, tmp_path, capsys)


def test_a_name_that_stands_twice_is_refused(
    exported: Path, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ZipFile(exported, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr(next(name for name in file.namelist() if name.endswith("run.json")), "{}")
    refused(exported, room, tmp_path, capsys)


def test_no_such_file(tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["analyze", "one", "--against", str(tmp_path / "gone.zip"), "--results", str(tmp_path / "results")]
    assert main(arguments) == 2
    assert "gone.zip: no such file" in capsys.readouterr().err


def test_the_kind_is_part_of_the_format(exported: Path) -> None:
    with ZipFile(exported) as file:
        found = json.loads(file.read(MANIFEST))
    assert (found["kind"], found["schema_version"], file.namelist()[0]) == (KIND, 4, MANIFEST)


def test_profiles_are_exported_and_their_traces_said_to_be_left(
    run: Run, tmp_path: Path, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.profiler_dir.mkdir()
    run.profile_file(0).write_text("{}", encoding="utf-8")
    (run.profiler_dir / "rank_0.pt.trace.json").write_text("{}", encoding="utf-8")
    path = tmp_path / "profiled.zip"
    assert main(["runs", "export", "one", "-o", str(path), "--results", str(tmp_path / "results")]) == 0
    assert "left out: profilers' traces of one; they stay in their folders' profiler/" in capsys.readouterr().out
    with open_export(path) as found:
        (back,) = found.runs
        assert [each.name for each in back.profiler_dir.iterdir()] == ["profile_0.json"]
