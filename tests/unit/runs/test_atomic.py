from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest

from dynbench.runs.atomic import jsonable, replacing_folder, settle_folder, write_json, write_text


class Colour(StrEnum):
    RED = "red"


@dataclass
class Point:
    x: float
    y: tuple[int, ...]


def test_everything_a_record_holds_becomes_json() -> None:
    value = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf, 1.5],
        "numpy": np.float32(0.5),
        "numpy nan": np.float64("nan"),
        "array": np.array([[1, 2], [3, 4]]),
        "path": Path("a/b"),
        "enum": Colour.RED,
        "point": Point(math.nan, (1, 2)),
        "set": {"b", "a"},
        3: True,
        "none": None,
    }
    assert jsonable(value) == {
        "nan": None,
        "inf": [None, None, 1.5],
        "numpy": 0.5,
        "numpy nan": None,
        "array": [[1, 2], [3, 4]],
        "path": "a/b",
        "enum": "red",
        "point": {"x": None, "y": [1, 2]},
        "set": ["a", "b"],
        "3": True,
        "none": None,
    }


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        jsonable({"z": 1j})


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(OSError):
        write_text(path.parent / ("x" * 300), "never")
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    write_text(tmp_path / "t", "a\r\n批\n")
    assert (tmp_path / "t").read_bytes() == "a\r\n批\n".encode()
    write_text(tmp_path / "t", "\udcff")  # a byte of a command line that is no UTF-8
    assert (tmp_path / "t").read_text() == r"\udcff"


@pytest.mark.slow
def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"n": 0, "pad": "x" * 100_000})
    stop = threading.Event()

    def rewrite() -> None:
        for n in range(100):
            write_json(path, {"n": n, "pad": "x" * 100_000})
        stop.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    reads = 0
    while not stop.is_set() or reads == 0:
        assert len(json.loads(path.read_text())["pad"]) == 100_000
        reads += 1
    writer.join()


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("error", [SystemExit, OSError])
@pytest.mark.parametrize("there", [True, False])
def test_a_folder_is_the_old_one_or_the_new_one(tmp_path: Path, there: bool, error: type[BaseException]) -> None:
    folder = tmp_path / "kept"
    if there:
        write_text_in(folder, "a", "old")
    before = contents(tmp_path)
    with pytest.raises(error), replacing_folder(folder) as partial:
        (partial / "a").write_text("new")
        raise error
    assert contents(tmp_path) == before
    with replacing_folder(folder) as partial:
        (partial / "b").write_text("new")
        assert contents(folder) == ({"a": "old"} if there else {})
    assert contents(tmp_path) == {"kept/b": "new"}


def test_a_writer_that_was_killed_is_tidied_up_after(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    write_text_in(tmp_path / ".kept.partial", "a", "half")
    settle_folder(folder)
    assert contents(tmp_path) == {}
    for left, kept in (((".kept.old",), "old"), ((".kept.old", "kept"), "new")):
        for name in (*left, ".kept.partial"):
            write_text_in(tmp_path / name, "a", {".kept.old": "old", "kept": "new"}.get(name, "half"))
        settle_folder(folder)
        assert contents(tmp_path) == {"kept/a": kept}


def write_text_in(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
