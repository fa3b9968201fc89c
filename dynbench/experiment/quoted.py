"""What records say as a report may quote it: whoever made a folder may have written anything into its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar, cast

from pydantic import BaseModel

from dynbench.analysis.questions.base import Question
from dynbench.runs.phrase import Phrase
from dynbench.table_text import printable

T = TypeVar("T")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=[(:\[])")
_LINES = re.compile(r"\s*\n\s*")


def quoted(text: str) -> str:
    """A text that is text wherever Markdown has it: no HTML, link, image, or line of its own begins in it."""
    return _LINK.sub(r"\\]", _TAG.sub("&lt;", _LINES.sub(" ", printable(text))))


def all_quoted(record: T) -> T:
    """A record, whatever it is made of, with every text in it as `quoted` has it; keys of mappings too."""
    return cast(T, _walk(record))


def _walk(value: object) -> object:
    if isinstance(value, Phrase):
        return Phrase(quoted(value), value.say, **cast("dict[str, object]", _walk(value.values)))
    if type(value) is str:
        return quoted(value)
    if isinstance(value, Mapping):
        return {_walk(key): _walk(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_walk, value))  # type: ignore[call-arg, call-overload]
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _walk(getattr(value, name)) for name in type(value).model_fields})
    if is_dataclass(value) and not isinstance(value, type | Question):
        return replace(value, **{item.name: _walk(getattr(value, item.name)) for item in fields(value) if item.init})
    return value
