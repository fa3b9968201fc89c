"""Whether an object or a CSV is as its document says, and the lines that are missing."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from dynbench.fields.documents import Document, Field, documents

NOT_TEXT = {"integer": (int,), "number": (int, float), "boolean": (bool,)}
SCALARS = {"string": (str,), **NOT_TEXT}


@dataclass
class Check:
    """What was seen.

    Attributes:
        problems: what to write where, each once.
        used: (document, path) of every field that occurred.
    """

    problems: dict[str, None] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)

    def json(self, document: Document, value: object, where: str) -> None:
        """Check an object."""
        assert isinstance(value, Mapping), where
        self._object(documents()[document.same or document.name], "", value, where)

    def csv(self, document: Document, path: Path) -> None:
        """Check a file with a header; an empty cell is a null."""
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for name in rows[0] if rows else ():
            cells = [row[name] for row in rows if row[name] is not None]  # a torn last line has fewer
            found = self._field(document, "", name, _read(cells[0]), str(path))
            for cell in dict.fromkeys(cells) if found is not None and found.kind in NOT_TEXT else ():
                if not (cell == "" and found.nullable) and not _fits(found.kind, _read(cell)):
                    self._problem(document, f"column {name} is {found.type}, and {cell!r} stands in {path}")

    def columns(self, document: Document, names: Iterable[str], where: str) -> None:
        """Check the names of columns."""
        for name in names:
            self._field(document, "", name, None, where)

    def _object(self, document: Document, prefix: str, value: Mapping[str, object], where: str) -> None:
        for key, item in value.items():
            found = self._field(document, prefix, key, item, where)
            if found is not None:
                self._value(document, found, item, where)

    def _field(self, document: Document, prefix: str, key: str, item: object, where: str) -> Field | None:
        found = _declared(document.name, prefix, key)
        if found is None:
            self._problem(document, f"add `{prefix}{key}: TYPE, UNIT - MEANING`  (in {where}: {item!r:.60})")
            return None
        self.used.add((document.name, found.path))
        return found

    def _value(self, document: Document, found: Field, item: object, where: str) -> None:
        kind, path, items = found.kind, found.path, [item]
        if item is None and found.nullable:
            return
        if kind.startswith("array") and isinstance(item, list | tuple):
            kind, path, items = kind.removeprefix("array").removeprefix(" of ") or "any", f"{path}[]", list(item)
        for each in items if kind != "any" else ():
            if not _fits(kind, each):
                self._problem(document, f"{path} is {found.type}, and {each!r:.60} stands in {where}")
            elif kind not in SCALARS:
                within = (document, f"{path}.") if kind == "object" else (documents()[kind], "")
                self._object(*within, each, where)

    def _problem(self, document: Document, text: str) -> None:
        self.problems[f"{document.place}: {text}"] = None


@cache
def _declared(name: str, prefix: str, key: str) -> Field | None:
    """The field of a document that a key stands for: its own, or one of any name, or in a CSV of a part of a name."""
    document, free = documents()[name], rf"{re.escape(prefix)}<[^.\[]+>"

    def takes(path: str) -> bool:
        return bool(re.fullmatch(free, path) or (document.csv and re.fullmatch(re.sub("<[^>]+>", ".+", path), key)))

    named = (each for each in document.fields if each.path == f"{prefix}{key}")
    return next(named, None) or next((each for each in document.fields if takes(each.path)), None)


def _read(cell: str) -> object:
    for read in (int, float, {"true": True, "false": False}.__getitem__):
        with suppress(ValueError, KeyError):
            return read(cell.lower())  # type: ignore[operator]
    return cell or None


def _fits(kind: str, item: object) -> bool:
    if kind in SCALARS:
        return isinstance(item, SCALARS[kind]) and isinstance(item, bool) == (kind == "boolean")
    return kind == "any" or (isinstance(item, Mapping) and not kind.startswith("array"))
