"""Text files as lines, with errors that name the file and the line."""

from __future__ import annotations

from pathlib import Path

from dynbench.errors import DataError


def read_lines(path: Path, key: str, expected: str) -> list[str]:
    """The lines of a UTF-8 file without their ends; a byte order mark and empty lines at the end are dropped.

    Only line feeds (with or without a carriage return) end a line: other separators belong to the text.

    Args:
        path: the file.
        key: dotted configuration key that named it, for messages.
        expected: what the file should hold, for messages.

    Raises:
        DataError: missing, unreadable, empty, or not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{key}: {path}: {error.strerror}; {expected}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise DataError(
            f"{path}:{line}: byte 0x{byte:02x} is not UTF-8 text; {expected}", "Save it as UTF-8."
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{path}:1: the file is empty; {expected}")
    return lines
