"""Fields as they are declared: of classes of records and of measures, with their docstrings, and columns of rows.

The unit of a field is that of its declaration (`Unit`, a metric, a column), else the one that its name ends in.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel

from dynbench.analysis.measure import Measure, Metric
from dynbench.runs.columns import Column
from dynbench.units import Unit

SCALARS: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", object: "any"}
UNITS = {
    "_world_size": "ranks",
    "_workers": "ranks",
    "_global_batch": "samples",
    "_fitting_batch": "samples",
    "_samples": "samples",
    "_steps": "steps",
    "_length": "tokens",
    "_positions": "tokens",
    "_megabytes": "MB",
    "_efficiency": "fraction",
    "_ms": "ms",
    "_mb": "MB",
    "_s": "s",
    "_ns": "ns",
    "_samples_per_s": "samples/s",
    "_tokens_per_s": "tokens/s",
    "_tokens": "tokens",
    "_percent": "%",
    "_bytes": "bytes",
    "_ms_per_token": "ms/token",
    "_ms_per_token2": "ms/token²",
    "_mape": "fraction",
    "_share": "fraction",
    "_fraction": "fraction",
}
"""By the ending of a name, or of that of an object around it."""


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

    def with_unit(self, unit: str = "") -> Field:
        """The field with that unit, else with the one that its name, or that of an object around it, ends in."""
        if unit or not any(word in self.type for word in ("number", "integer")):
            return replace(self, unit=unit)
        for name in reversed(self.path.replace("[]", "").split(".")):
            endings = [ending for ending in UNITS if f"_{name}".endswith(ending) and len(name) > 1]
            if endings:
                return replace(self, unit=UNITS[max(endings, key=len)])
        return self


class Reader:
    """Reads declarations; a record that is a document of its own is of the type of that name.

    Attributes:
        documents: class of records to the name of its document.
    """

    def __init__(self) -> None:
        self.documents: dict[object, str] = {}

    def fields(self, declared: object) -> Iterator[Field]:
        """Of a class, a column, a measure, or of several of these."""
        if isinstance(declared, type):
            yield from self._of_class(declared)
        elif isinstance(declared, Column):
            kind = "string" if declared.type == "text" else declared.type
            field = Field(declared.name, f"{kind} or null", declared.description, optional=True)
            yield field.with_unit({"B": "bytes"}.get(declared.unit, declared.unit))
        elif isinstance(declared, Measure):
            yield from self._of(declared.key, declared.type, "", declared)
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
        field = Field(path, f"{kind} or null" if null else kind, text, optional=optional, same=same)
        scalar = kind.removeprefix("array of ") in SCALARS.values()
        yield field.with_unit(unit) if scalar else field
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
