"""Fields as they are declared, by classes of records, measures and columns, and the page of documents made of them.

The unit of a field is that of its declaration (`Unit`, a metric, a column); a name that ends in its unit declares none.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import yaml
from pydantic import BaseModel

from dynbench.analysis.measure import Measure, Metric
from dynbench.plugins import Registry
from dynbench.runs.records import Column
from dynbench.units import Unit

SCALARS: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", object: "any"}


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        path: dotted, with `[]` for items and `<name>` for any key.
        type: what its value is.
        meaning: what it says, and when an optional one is there.
        unit: empty for text and pure numbers.
        optional: it is not always there.
        same: path of the field of a summary that says the rest of it.
    """

    path: str
    type: str
    meaning: str
    unit: str = ""
    optional: bool = False
    same: str = ""

    @property
    def kind(self) -> str:
        """The type without `or null`."""
        return self.type.removesuffix(" or null")

    @property
    def nullable(self) -> bool:
        """Whether the value may be null; in a CSV, whether the cell may be empty."""
        return self.type.endswith(" or null")


class Reader:
    """Reads declarations; a record that is a document of its own is of the type of that name.

    Attributes:
        documents: class of records to the name of its document.
    """

    def __init__(self) -> None:
        self.documents: dict[object, str] = {}

    def fields(self, declared: object) -> Iterator[Field]:
        """Of a class, a column, a measure, the classes of a registry that declare columns, or of several of these."""
        if isinstance(declared, type):
            yield from self._of_class(declared)
        elif isinstance(declared, Column):
            kind = "string" if declared.type == "text" else declared.type
            unit = {"B": "bytes"}.get(declared.unit, declared.unit)
            yield Field(declared.name, f"{kind} or null", declared.description, unit, optional=True)
        elif isinstance(declared, Measure):
            yield from self._of(declared.key, declared.type, "", declared)
        elif isinstance(declared, Registry):
            yield from self.fields([entry.load().columns for entry in declared.values()])
        elif isinstance(declared, Iterable):
            for each in declared:
                yield from self.fields(each)

    def _of_class(self, cls: type, prefix: str = "", unit: str = "", optional: bool = False) -> Iterator[Field]:
        """Every field, those of the records within it included; `unit` and `optional` are those of the object."""
        texts, hints = _docstrings(cls), get_type_hints(cls, include_extras=True)
        for name, text in texts.items():
            declared = getattr(cls, name, None)
            yield from self._of(f"{prefix}{name}", hints[name], text, declared, unit, optional)

    def _of(
        self, path: str, hint: Any, text: str, declared: object = None, unit: str = "", optional: bool = False
    ) -> Iterator[Field]:
        hint, facts = _unwrapped(hint)
        null, optional = NoneType in facts, optional or NotRequired in facts
        if isinstance(declared, Measure):
            optional = optional or declared.optional or bool(declared.needs)
            facts = [*facts, *declared.metrics, Unit(declared.unit)]
        for fact in facts:
            known = fact.name if isinstance(fact, Unit) else fact.unit if isinstance(fact, Metric) else ""
            unit = "fraction" if known == "%" else known or unit
        same = declared.same if isinstance(declared, Measure) else ""
        named = next((fact for fact in facts if isinstance(fact, str)), self.documents.get(hint))
        arguments = get_args(hint)
        kind, inner, item = named or "object", "", hint
        if get_origin(hint) in (dict, Mapping) and not named:
            item, inner = arguments[1], f"{path}.<name>"
        elif get_origin(hint) in (list, tuple, Sequence):
            item, item_facts = _unwrapped(arguments[0])
            listed = next((fact for fact in item_facts if isinstance(fact, str)), self.documents.get(item))
            listed = listed or ("object" if _is_record(item) else _scalar(item))
            kind, inner = "array" if listed == "any" else f"array of {listed}", f"{path}[]"
        elif not named and not _is_record(hint):
            kind = _scalar(hint)
        of_numbers = kind.removeprefix("array of ") in ("number", "integer")
        yield Field(path, f"{kind} or null" if null else kind, text, unit if of_numbers else "", optional, same)
        if inner.endswith(".<name>"):
            yield from self._of(inner, item, "Of that name.", None, unit, True)
        elif kind.endswith("object") and _is_record(item):
            yield from self._of_class(item, f"{inner or path}.", unit, optional or null)


def _docstrings(cls: type) -> dict[str, str]:
    """Name of every annotated field to the text below it, or to its line among the class's attributes; may be empty."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    bases = [base for base in cls.__bases__ if base.__module__.startswith("dynbench.")]
    found = {name: text for base in bases for name, text in _docstrings(base).items()}
    listed = _attributes(inspect.cleandoc(ast.get_docstring(tree) or ""))
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            said = " ".join(said.split()) or listed.get(node.target.id, "")
            found[node.target.id] = re.sub(r"\bNone\b", "null", said)
    return found


def _attributes(docstring: str) -> dict[str, str]:
    """Name to text of the section `Attributes:`, or `Args:` of a dataclass that others make."""
    _, *sections = re.split(r"^(?:Attributes|Args):\n", docstring, flags=re.MULTILINE)
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", "".join(sections), re.MULTILINE)
    texts = {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}
    return {name: text[:1].upper() + text[1:] for name, text in texts.items()}


def _unwrapped(hint: Any) -> tuple[Any, list[object]]:
    """The type itself, and what is said around it: what it is `Annotated` with, `NoneType` where it may be null."""
    facts: list[object] = []
    while True:
        if get_origin(hint) is Annotated:
            facts += hint.__metadata__
            hint = hint.__origin__
        elif get_origin(hint) is NotRequired:
            facts.append(NotRequired)
            (hint,) = get_args(hint)
        elif get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            facts.append(NoneType)
            rest = [each for each in get_args(hint) if each is not NoneType]
            hint = rest[0] if len(rest) == 1 else object
        elif get_origin(hint) in (Union, UnionType):
            return object, facts
        else:
            return hint, facts


def _is_record(hint: Any) -> bool:
    if not isinstance(hint, type):
        return False
    declares = any(isinstance(each, Measure) for each in vars(hint).values())
    return declares or is_typeddict(hint) or is_dataclass(hint) or issubclass(hint, BaseModel)


def _scalar(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "string"
    if get_origin(hint) is Literal:
        return _scalar(type(get_args(hint)[0]))
    return SCALARS.get(hint, "any")


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
        yield Field(path, "object", match["meaning"], optional=match["optional"] is not None)
        unit = f", {match['unit']}" if match["unit"] else ""
        yield from _parsed(where, f"{path}.<name>", f"{inner}{unit}, optional - Of that name.")
    else:
        yield Field(path, kind, match["meaning"], match["unit"] or "", match["optional"] is not None)


HEAD = """# Fields

What every field of the files that dynbench writes, and of what its commands print under `--json`, means. This page is
made of what declares them and of the tables in `dynbench/fields/`; a test holds it to what is written.

A number has the unit that is stated, else the one that its name, or that of an object around it, ends in; times are
wall-clock, and MB is 1e6 bytes. `[]` stands for the items of a list, `<name>` for any key. A type that is a link is an
object with the fields of that section. What is not always there is optional; its meaning says when it is. An empty cell
of a CSV is a null. Numbers that JSON does not have (NaN, infinities) are null."""


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
