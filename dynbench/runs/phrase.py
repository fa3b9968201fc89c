"""Texts of records that keep the facts in them, so that a report can say them in another language."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Annotated, Any

import yaml

PhraseRecord = Annotated[dict[str, object], "phrase"]
"""What a JSON file keeps of a phrase; `phrase` is its name among the documents of `dynbench.fields`."""


class Phrase(str):
    """An English text, a string in every respect, that knows what it says.

    Attributes:
        say: which sentence it is, a key among a language's texts.
        values: what the sentence mentions, by name: numbers, names, and other phrases or lists of them.
    """

    say: str
    values: Mapping[str, object]

    def __new__(cls, text: str, say: str = "", **values: object) -> Phrase:
        """A text with its key and values."""
        phrase = super().__new__(cls, text)
        phrase.say, phrase.values = say, values
        return phrase

    @classmethod
    def of(cls, say: str, **values: object) -> Phrase:
        """The sentence of `phrases.yaml` under a key, with its values.

        Raises:
            KeyError: no such sentence, or a value that it mentions is not given.
        """
        return cls(Texts().vformat(english()[say], (), values), say, **values)

    @classmethod
    def listed(cls, separator: str, items: Iterable[Phrase]) -> Phrase:
        """Several phrases as one."""
        items = tuple(items)
        return cls(separator.join(items), "list", items=items)

    @classmethod
    def read(cls, record: Mapping[str, object]) -> Phrase:
        """A phrase from its record; values that are phrases stay records."""
        values = record.get("values")
        known = values if isinstance(values, dict) else {}
        return cls(str(record.get("text", "")), str(record.get("say", "")), **known)

    def record(self) -> PhraseRecord:
        """What a JSON file keeps of it."""
        return {"say": self.say, "text": str(self), "values": recorded(self.values)}


@cache
def english() -> Mapping[str, str]:
    """Key to sentence."""
    found: dict[str, str] = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8"))
    return found


def recorded(value: object) -> object:
    """A value of a phrase with every phrase in it as its record; NaN and infinities, which JSON has not, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Phrase):
        return value.record()
    if isinstance(value, Mapping):
        return {str(key): recorded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [recorded(item) for item in value]
    return value


class Texts(Formatter):
    """`str.format` over recorded values by plain names: lists are joined, percent signs set off, words in the plural.

    A format `line|lines` stands for a word for the number 1, and the one for all others.
    """

    separator = ", "
    percent = " %"

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """The value of a plain name; attributes and indices are not for texts."""
        value = kwargs[field_name]
        if value is None:
            raise KeyError(field_name)
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """A value in words; only numbers heed the format."""
        if isinstance(value, list | tuple):
            return self.separator.join(self.format_field(item, "") for item in value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return str(value)
        if "|" in format_spec:
            one, others = format_spec.split("|")
            return one if value == 1 else others
        text = format(value, format_spec)
        return f"{text[:-1]}{self.percent}" if format_spec.endswith("%") else text
