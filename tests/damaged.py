"""Damage to a file of a folder, and a refusal to read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _later(content: bytes) -> bytes:
    """As a version would write it that knows other keys and columns."""
    first, newline, rest = content.partition(b"\n")
    if first.startswith(b"{"):
        written, versions = re.subn(rb'"schema_version": \d+', b'"schema_version": 999', content, count=1)
        return written if versions else b'{"schema_version": 999,' + content[1:]
    return b"of_later" + first[4:] + newline + rest


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "corrupted": lambda content: b"\x00\xff{[" + bytes(reversed(content)),
    "duplicated": lambda content: content + content,
    "foreign": _later,
}


def refused(said: dict[str, Any], path: Path) -> None:
    """A refusal has a line for every mistake, which names the file, and a hint."""
    lines = said["error"]["message"].split("\n")
    assert all(path.name in line for line in lines) and said["error"]["hint"], said
