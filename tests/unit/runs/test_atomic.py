from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dynbench.errors import RecordError
from dynbench.runs.atomic import (
    RESERVE_BYTES,
    jsonable,
    load_json,
    read_json,
    replacing_folder,
    settle_folder,
    write_json,
    write_text,
)
from dynbench.runs.run import Run, Status


@dataclass
class Content:
    name: str
    sizes: list[int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.json"


def test_what_a_record_holds_becomes_json() -> None:
    floats, scalars = [math.nan, math.inf, -math.inf, 1.5], (np.float32(0.5), np.float64("nan"), np.int64(3))
    others = {"path": Path("a/b"), "enum": Status.OOM, 3: {"x"}, "array": np.array([[1, 2], [3, 4]])}
    assert jsonable([floats, scalars, Content("a", [1])]) == [
        [None, None, None, 1.5], [0.5, None, 3], {"name": "a", "sizes": [1]}
    ]  # fmt: skip
    assert jsonable(others) == {"path": "a/b", "enum": "oom", "3": ["x"], "array": [[1, 2], [3, 4]]}


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_and_who_reads_it_never_sees_a_part(path: Path) -> None:
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(OSError):
        write_text(path.parent / ("x" * 300), "never")
    with path.open() as reader:
        write_json(path, {"a": 2})
        assert (json.load(reader), load_json(path)) == ({"a": 1}, {"a": 2})
    assert list(path.parent.iterdir()) == [path]


def test_text_is_written_as_it_is(path: Path) -> None:
    write_text(path, "a\r\n批\n\udcff")  # the last is a byte of a command line that is no UTF-8
    assert path.read_bytes() == "a\r\n批\n\\udcff".encode()


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, '{"a": "x\\u0000y"}', '{"a": "\\ud800"}', "9" * 5000], ids=lambda text: text[:12]
)
def test_json_that_no_record_holds(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ValueError):
        load_json(path)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (None, "cannot be read", "Make it again."),
        ("{", "not JSON", "Make it again."),
        ("[1]", "content: ", "Make it again."),
        ('{"name": "a"}', "sizes: ", "Make it again."),
        ('{"name": "a", "sizes": [1, "x"]}', r"sizes\.1: ", "Make it again."),
        ('{"schema_version": 3, "version": "9.1"}', "has schema version 3, this dynbench reads up to 2", "9.1"),
    ],
)
def test_a_record_that_cannot_be_used_says_where(path: Path, text: str | None, reason: str, hint: str) -> None:
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecordError, match=reason) as caught:
        read_json(path, Content, "Make it again.", 2)
    assert str(path) in caught.value.message and hint in caught.value.hint


def test_what_is_written_is_read_and_keys_of_later_versions_are_ignored(path: Path) -> None:
    write_json(path, {"name": "\\u0000 \U0001f600", "sizes": [1], "schema_version": 1, "more": 0})
    assert read_json(path, Content, "", 2) == Content("\\u0000 \U0001f600", [1])


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_in(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "a").write_text(text)


@pytest.mark.parametrize("before", [{}, {"kept/a": "old"}])
def test_a_folder_is_the_old_one_or_the_new_one(tmp_path: Path, before: dict[str, str]) -> None:
    folder = tmp_path / "kept"
    if before:
        write_in(folder, "old")
    with pytest.raises(SystemExit), replacing_folder(folder) as partial:
        write_in(partial, "new")
        raise SystemExit
    assert contents(tmp_path) == before
    with replacing_folder(folder) as partial:
        write_in(partial, "new")
        assert contents(folder) == ({"a": "old"} if before else {})
    assert contents(tmp_path) == {"kept/a": "new"}


@pytest.mark.parametrize(
    ("left", "found"), [([], {}), ([".kept.old"], {"kept/a": ".kept.old"}), ([".kept.old", "kept"], {"kept/a": "kept"})]
)
def test_what_a_killed_writer_left_is_tidied_up(tmp_path: Path, left: list[str], found: dict[str, str]) -> None:
    for name in (*left, ".kept.partial"):
        write_in(tmp_path / name, name)
    settle_folder(tmp_path / "kept")
    assert contents(tmp_path) == found


def test_room_is_reserved_for_the_end_while_a_run_runs(run: Run) -> None:
    for end in ("completed", "failed", "interrupted", "oom"):
        for change, room in (({"status": "running"}, 1), ({"warnings": ["it runs"]}, 1), ({"status": end}, 0)):
            run.update(**change)
            assert sum(path.stat().st_size for path in run.path.glob(".*")) == room * RESERVE_BYTES
