"""Fields of a record class with their docstrings, so that what they mean stands once."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

SCALARS: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", object: "any"}


def class_fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """Path, type and docstring of every field of a dataclass or model, those of the records within it included."""
    texts, hints = _docstrings(cls), get_type_hints(cls)
    for name in texts:
        hint, null = _without_null(hints[name])
        suffix = " or null" if null else ""
        origin, arguments = get_origin(hint), get_args(hint)
        if _is_record(hint):
            yield name, f"object{suffix}", texts[name]
            yield from _within(name, hint)
        elif origin is dict:
            value, value_null = _without_null(arguments[1])
            yield name, f"object{suffix}", texts[name]
            if _is_record(value):
                yield f"{name}.<name>", "object or null" if value_null else "object", "Of that name."
                yield from _within(f"{name}.<name>", value)
            else:
                yield f"{name}.<name>", _scalar(value) + (" or null" if value_null else ""), "Of that name."
        elif origin in (list, tuple):
            item = _without_null(arguments[0])[0]
            if _is_record(item):
                yield name, f"array of object{suffix}", texts[name]
                yield from _within(f"{name}[]", item)
            else:
                inner = _scalar(item)
                yield name, f"array{'' if inner == 'any' else f' of {inner}'}{suffix}", texts[name]
        else:
            yield name, f"{_scalar(hint)}{suffix}", texts[name]


def _within(prefix: str, cls: type) -> Iterator[tuple[str, str, str]]:
    for path, kind, text in class_fields(cls):
        yield f"{prefix}.{path}", kind, text


def _docstrings(cls: type) -> dict[str, str]:
    """Name of every annotated field to the text below it, joined to a line; empty where there is none."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            found[node.target.id] = " ".join(said.split())
    return found


def _without_null(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, UnionType):
        rest = [each for each in get_args(hint) if each is not NoneType]
        return (rest[0] if len(rest) == 1 else object), len(rest) < len(get_args(hint))
    return hint, False


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel))


def _scalar(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "string"
    if get_origin(hint) is Literal:
        return _scalar(type(get_args(hint)[0]))
    return SCALARS.get(hint, "any")
