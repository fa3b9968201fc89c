"""Files that appear whole or not at all, file locks and reserved disk space; JSON written, read and validated.

pydantic is imported where it is used: `--help`, which needs none, does not wait for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from dynbench.errors import RecordError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
RESERVE_BYTES = 2**18
"""Holds `run.json`, `env.json` and what some tens of ranks write about their failure, a block of the disk each."""
_RESERVE = ".reserve"
_NULL_CHARACTER = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


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
    (folder / _RESERVE).write_bytes(bytes(RESERVE_BYTES))


def release(folder: Path) -> None:
    """Give the room back; where none was taken, nothing happens."""
    (folder / _RESERVE).unlink(missing_ok=True)


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


def jsonable(value: object) -> Any:
    """A value as JSON has it.

    Paths become text, enums their value, dataclasses and pydantic models objects, tuples and sets lists, numpy scalars
    and arrays plain numbers and lists, and NaN and infinities, which JSON lacks, null.

    Raises:
        TypeError: something else.
    """
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="null", fallback=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    to_list = getattr(value, "tolist", None)
    if callable(to_list):
        return to_list()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def load_json(path: Path) -> Any:
    """The content of a JSON file that anybody may have made.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, not JSON, nested more than 200 levels deep, or holds null characters, which
            no path may.
    """
    from pydantic_core import from_json

    if is_special(path):
        raise ValueError("it is no file")
    text = path.read_bytes()
    if _NULL_CHARACTER.search(text):
        raise ValueError("it holds null characters")
    return from_json(text)


def read_json(path: Path, form: type[T], remedy: str, version: int | None = None) -> T:
    """The content of a JSON file, validated by pydantic.

    Args:
        path: the file.
        form: type of the content; whether unknown keys are ignored or refused is up to it.
        remedy: what to do where the content is not of the type.
        version: the latest `schema_version` that this dynbench reads; None where the file has none.

    Raises:
        RecordError: no such file, not JSON, a key missing or of the wrong type, or a newer schema version.
    """
    from pydantic_core import ValidationError

    try:
        data = load_json(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        raise RecordError(f"{path}: cannot be read: {reason}", remedy) from error
    if version is not None:
        check_version(path, data, version)
    try:
        content: T = _adapter(form).validate_python(data)
    except ValidationError as error:
        raise RecordError(f"{path}: {first_error(error)}", remedy) from error
    return content


def _make_adapter(form: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(form)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(_make_adapter)
"""Making one takes longer than reading a record with it."""


def first_error(error: ValidationError, *parents: str) -> str:
    """Where the first mistake is, as a dotted key below `parents`, and what it is."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, (*parents, *first["loc"])))
    return f"{where or 'content'}: {first['msg'].removeprefix('Value error, ')}"


def check_version(path: Path, data: object, version: int) -> None:
    """Refuse what a later version wrote, before anything else in it is judged.

    Raises:
        RecordError: its `schema_version` is above `version`.
    """
    written = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(written, int) and written > version:
        by = f" ({data['version']})" if "version" in data else ""
        raise RecordError(
            f"{path}: has schema version {written}, this dynbench reads up to {version}",
            f"Read it with the version that wrote it{by} or a later one.",
        )


def is_special(path: Path) -> bool:
    """Whether it is a pipe, a device or a folder, from which might be read without an end, or nothing."""
    return path.exists() and not path.is_file()


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
