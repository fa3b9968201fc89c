"""JSON files as typed records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from dynbench.errors import RecordError

MOST_DEPTH = 32
"""Levels of nesting in a record; none of ours has half as many."""
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_NULL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


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


T = TypeVar("T")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Making one takes longer than reading a record with it."""


def read_json(path: Path, form: type[T], remedy: str, version: int | None = None) -> T:
    """The content of a JSON file in the form of a type that pydantic knows.

    Args:
        path: the file.
        form: keys that it does not have are left out, or refused, as it says.
        remedy: what to do where it is not of the form.
        version: the latest `schema_version` that this dynbench reads; None where the file has none.

    Raises:
        RecordError: no such file, not JSON, a key missing or of the wrong type, or a newer schema version.
    """
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
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise RecordError(f"{path}: {where or 'content'}: {said}", remedy) from error
    return content


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
