"""The pages that people read: both READMEs, and the guides of the package."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READMES = ("README.md", "README.zh-CN.md")
GUIDES = tuple(f"dynbench/guides/{path.name}" for path in sorted((ROOT / "dynbench" / "guides").glob("*.md")))
PAGES = (*READMES, *GUIDES)
_COMMAND = re.compile(r"(?:^    |; do )(?:DYNBENCH_PLUGINS=\S+ )?dynbench ((?:[^\n;>\\]|\\\n)+)", re.MULTILINE)


def read(page: str) -> str:
    """The text of a page, by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page: str) -> Iterator[list[str]]:
    """The words after `dynbench` of every command in a page's blocks of code."""
    for command in _COMMAND.findall(read(page)):
        yield shlex.split(command.replace("\\\n", " ").replace("$s", "0"))
