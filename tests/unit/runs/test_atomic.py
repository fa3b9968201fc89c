from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest

from dynbench.runs.atomic import jsonable, write_json, write_text


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
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    write_text(tmp_path / "t", "a\r\n批\n")
    assert (tmp_path / "t").read_bytes() == "a\r\n批\n".encode()


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
