"""The tables of fields as objects, and the page that is made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from dynbench.fields.classes import Field, Reader

TYPES = ("string", "integer", "number", "boolean", "object", "array", "any")
ORDER = ("records", "training", "comparison", "solve", "probe", "bench", "commands")
"""The tables, in the order of the page."""
PRINTED = (
    Field("schema_version", "integer", "Version of the object's form."),
    Field("command", "string", "The command."),
)
"""Of every object that a command prints."""
_LINE = re.compile(
    r"(?P<type>[a-z_. ]+?)(?:, (?P<unit>(?!optional)[^,]+?))?(?P<optional>, optional)? - (?P<meaning>.+)"
)


@dataclass(frozen=True)
class Document:
    """A file, what a command prints, or a shape that several of these share.

    Attributes:
        name: of the file, `COMMAND --json`, or the shape's name, which types use.
        title: what it is, in a sentence.
        fields: in the order of the page.
        table: name of the YAML file that holds it.
        same: name of the shape that it is, whose fields it has; empty where it has its own.
    """

    name: str
    title: str
    fields: tuple[Field, ...]
    table: str
    same: str = ""

    @property
    def csv(self) -> bool:
        """Whether the fields are columns."""
        return self.name.endswith(".csv")

    @property
    def place(self) -> str:
        """Where a line for it goes."""
        return f"dynbench/fields/{self.table}.yaml, {self.name}"


@cache
def documents() -> Mapping[str, Document]:
    """All documents by name, in the order of the page."""
    found: dict[str, Document] = {}
    reader = Reader()
    for table in ORDER:
        content = yaml.safe_load((Path(__file__).parent / f"{table}.yaml").read_text(encoding="utf-8"))
        for name, entry in content.items():
            fields = _fields(f"{table}.yaml, {name}", entry, found, reader)
            found[name] = Document(name, entry["_title"], tuple(fields), table, entry.get("_same", ""))
    return found


def _fields(where: str, entry: Mapping[str, Any], earlier: Mapping[str, Document], reader: Reader) -> Iterable[Field]:
    """The fields of `_with` (documents) and `_from` (declarations), less those of `_without`, and a field a line."""
    printed = PRINTED if where.endswith(" --json") and "_same" not in entry else ()
    named = [field for text in entry.get("_with", ()) for field in _taken(text, earlier)]
    found = {field.path: field for field in (*printed, *named)}
    found |= {field.path: field for name in entry.get("_flat", ()) for field in _flat(earlier[name], earlier)}
    places = entry.get("_from", ())
    for place in [places] if isinstance(places, str) else places:
        module, _, names = place.partition(":")
        declared = reduce(getattr, names.split("."), import_module(module))
        for field in reader.fields(declared):
            known = found.get(field.path, field)
            found[field.path] = _like(field, earlier["summary"]) if field.same else known if known.meaning else field
        if isinstance(places, str):
            reader.documents.setdefault(declared, where.partition(", ")[2])
    for path, unit in entry.get("_units", {}).items():
        found[path] = replace(found[path], unit=unit)
    for name in entry.get("_without", ()):
        found = {path: field for path, field in found.items() if not f"{path}.".startswith((f"{name}.", f"{name}["))}
    lines = {path: line for path, line in entry.items() if not path.startswith("_")}
    found |= {field.path: field for path, line in lines.items() for field in _parsed(where, path, line)}
    return found.values()


def _taken(text: str, earlier: Mapping[str, Document]) -> Iterable[Field]:
    """The fields of a document, or with `DOCUMENT: FIELD FIELD …` some of them."""
    name, _, chosen = text.partition(": ")
    return [field for field in earlier[name].fields if not chosen or field.path in chosen.split()]


def _flat(document: Document, earlier: Mapping[str, Document]) -> Iterator[Field]:
    """Columns of which nested names are joined by `_`; those of an object that may be null may be empty."""
    null = [f"{field.path}." for field in document.fields if field.nullable]
    for field in document.fields:
        inner = _flat(earlier[field.kind], earlier) if field.kind in earlier else [replace(field, path="")]
        empty = field.nullable or field.path.startswith(tuple(null))
        for each in inner if field.kind != "object" else ():
            path = "_".join(filter(None, (field.path.replace(".", "_"), each.path)))
            yield replace(each, path=path, type=f"{each.kind} or null" if empty or each.nullable else each.type)


def _like(field: Field, summary: Document) -> Field:
    """A column with the unit and the meaning of the field of a summary whose number it holds."""
    paths = (field.same, re.sub(r"[^.]+$", "<name>", field.same))
    same = next(each for path in paths for each in summary.fields if each.path == path)
    return replace(field, unit=same.unit, meaning=f"{same.meaning} (`{field.same}`)")


def _parsed(where: str, path: str, line: str) -> Iterator[Field]:
    """A field; an `object of TYPE` has one more for its values."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"{where}: {path}: {line!r} is not `TYPE[, UNIT][, optional] - meaning`")
    kind, _, inner = match["type"].partition("object of ")
    if inner:
        field = Field(path, "object", match["meaning"], optional=match["optional"] is not None)
        yield field
        unit = f", {match['unit']}" if match["unit"] else ""
        yield from _parsed(where, f"{path}.<name>", f"{inner}{unit}, optional - Of that name.")
    else:
        field = Field(path, kind, match["meaning"], optional=match["optional"] is not None)
        yield field.with_unit(match["unit"] or "")


HEAD = """# Fields

What every field of the files that dynbench writes, and of what its commands print under `--json`, means. This page is
made of what declares them and of the tables in `dynbench/fields/`; a test holds it to what is written.

Times are wall-clock milliseconds, memory is MB (1e6 bytes), unless the unit says otherwise. `[]` stands for the items
of a list, `<name>` for any key. A type that is a link is an object with the fields of that section. What is not always
there is optional; its meaning says when it is. An empty cell of a CSV is a null. Numbers that JSON does not have (NaN,
infinities) are null."""


def page() -> str:
    """The page as Markdown."""
    return "\n\n".join([HEAD, *(_section(document) for document in documents().values())]) + "\n"


def anchor(heading: str) -> str:
    """What a link to a section ends in, as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(document: Document) -> str:
    if document.same:
        return f"## {document.name}\n\n{document.title} The fields of [{document.same}](#{anchor(document.same)})."
    first = "column" if document.csv else "field"
    rows = [f"| {first} | type | unit | meaning |", "|---|---|---|---|", *_rows(document.fields)]
    return "\n".join([f"## {document.name}", "", document.title, "", *rows])


def _rows(fields: Iterable[Field]) -> Iterable[str]:
    for field in fields:
        meaning = f"Optional: {field.meaning}" if field.optional else field.meaning
        cells = (f"`{field.path}`", _type(field.type), field.unit, meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(text: str) -> str:
    """The type, with the name of a shape as a link to its section."""
    return " ".join(f"[{word}](#{anchor(word)})" if word in documents() else word for word in text.split())
