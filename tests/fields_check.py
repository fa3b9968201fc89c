"""Whether an object or a CSV is as its document says, and the lines that are missing."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dynbench.fields.documents import Document, Field, documents

INTEGER = re.compile(r"[+-]?\d+")
SCALARS = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}


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
            for cell in () if found is None else dict.fromkeys(cells):
                if cell == "" and found.nullable:
                    continue
                if not _is_cell(found.kind, cell):
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
        fields = {each.path: each for each in document.fields}
        free = re.compile(rf"{re.escape(prefix)}<[^.\[]+>")
        found = fields.get(f"{prefix}{key}") or next(
            (each for path, each in fields.items() if free.fullmatch(path)), None
        )
        if document.csv and found is None:
            wild = [each for path, each in fields.items() if re.fullmatch(re.sub("<[^>]+>", ".+", path), key)]
            found = next(iter(wild), None)
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
            if kind in SCALARS:
                fits = isinstance(each, SCALARS[kind]) and isinstance(each, bool) == (kind == "boolean")
            else:
                fits = isinstance(each, Mapping) and not kind.startswith("array")
            if not fits:
                self._problem(document, f"{path} is {found.type}, and {each!r:.60} stands in {where}")
            elif kind not in SCALARS:
                within = (document, f"{path}.") if kind == "object" else (documents()[kind], "")
                self._object(*within, each, where)

    def _problem(self, document: Document, text: str) -> None:
        self.problems[f"{document.place}: {text}"] = None


def _read(cell: str) -> object:
    return int(cell) if INTEGER.fullmatch(cell) else float(cell) if _is_cell("number", cell) else cell or None


def _is_cell(kind: str, cell: str) -> bool:
    if kind == "integer":
        return INTEGER.fullmatch(cell) is not None
    if kind == "boolean":
        return cell.lower() in ("true", "false")
    if kind == "number":
        try:
            float(cell)
        except ValueError:
            return False
    return True
