"""Files that appear whole or not at all, locked and with room kept for them; JSON written and read.

No more than the standard library is imported.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

RESERVE_BYTES = 2**18
"""Holds `run.json`, `env.json` and what some tens of ranks write about their failure, a block of the disk each."""
_NAME = ".reserve"
MOST_DEPTH = 32
"""Levels of nesting in a record; none of ours has half as many."""
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_NULL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on a file, which is made where it is missing and stays; others wait.

    Raises:
        OSError: the file cannot be opened, or its file system has no locks.
    """
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def reserve(folder: Path) -> None:
    """Take the room; `release` gives it back.

    Raises:
        OSError: there is not that much.
    """
    (folder / _NAME).write_bytes(bytes(RESERVE_BYTES))


def release(folder: Path) -> None:
    """Give the room back; where none was taken, nothing happens."""
    (folder / _NAME).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    r"""Write a UTF-8 file as `write_bytes` does; line ends stay as they are.

    Bytes of a command line that are no UTF-8 are written as JSON knows them, `\udcff`.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file as `replacing` does."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file beside `path`, flushed to disk before it takes the name where all of it was written.

    Raises:
        OSError: it cannot be written; names `path`, and the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary), temporary):
            error.filename = str(path)
        raise


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON; see `jsonable` for what it may hold."""
    write_text(path, json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def jsonable(value: object) -> object:
    """A value as JSON knows it.

    Paths become text, enums their value, dataclasses objects, tuples and sets lists, numpy scalars and arrays plain
    numbers and lists, and NaN and infinities null (JSON has neither).

    Raises:
        TypeError: something else.
    """
    if isinstance(value, Enum):
        return jsonable(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(item) for item in value), key=str)
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    to_plain = getattr(value, "tolist", None)
    if callable(to_plain):
        return jsonable(to_plain())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def load_json(path: Path) -> Any:
    """The content of a JSON file that anybody may have made.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file, no JSON, nested more than `MOST_DEPTH` levels deep, or holds what is no text.
    """
    if is_special(path):
        raise ValueError("it is no file")
    text = path.read_text(encoding="utf-8")
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_DEPTH} levels deep") from None
    if depth_of(data) > MOST_DEPTH:
        raise ValueError(f"nested more than {MOST_DEPTH} levels deep")
    if _NULL.search(text):
        raise ValueError("it holds null characters")
    if _HALF_CHARACTER.search(text):  # halves of a character that stand alone can be written nowhere
        json.dumps(data, ensure_ascii=False).encode()
    return data


def is_special(path: Path) -> bool:
    """Whether it is a pipe, a device or a folder, from which might be read without an end, or nothing."""
    return path.exists() and not path.is_file()


def depth_of(value: object) -> int:
    """Levels of nesting, counted without recursion."""
    level, depth = [value], 0
    while level:
        parts = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [part for item in parts for part in item]
        depth += 1
    return depth


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path` that takes its name where all of it was written; until then the old one stays."""
    partial, old = _beside(path)
    settle_folder(path)
    partial.mkdir(parents=True)
    try:
        yield partial
        if path.exists():
            path.rename(old)
        partial.rename(path)
    finally:
        settle_folder(path)


def settle_folder(path: Path) -> None:
    """Remove what a writer of `replacing_folder`, killed perhaps, left; a folder that it took away comes back."""
    partial, old = _beside(path)
    shutil.rmtree(partial, ignore_errors=True)
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.old")
