"""Reading JSON that anybody may have made, and no more than the standard library to do it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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
