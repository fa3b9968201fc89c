"""`tests/README.md`, a page of sections, each written by what it is of."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).with_name("README.md")


def section(name: str) -> str:
    """The text of a section; empty where there is none yet."""
    begin, end = _marks(name)
    return _text().partition(begin)[2].partition(end)[0]


def write_section(name: str, text: str) -> None:
    """Put a section in its place, else at the end; the others stay as they are."""
    begin, end = _marks(name)
    before, _, rest = _text().partition(begin)
    PAGE.write_text(before + begin + text + end + rest.partition(end)[2], encoding="utf-8")


def _text() -> str:
    return PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
