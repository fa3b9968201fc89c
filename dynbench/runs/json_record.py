"""JSON files as typed records."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from dynbench.errors import RecordError
from dynbench.runs.atomic import load_json

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
