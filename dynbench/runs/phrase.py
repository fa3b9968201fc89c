"""What records say: an id and values, which one template per language puts into words.

The templates stand in `report/records.LANGUAGE.yaml`, Jinja2 under the same ids in every language. Records keep the
English text beside the id and its values, so that a report can say the same in another language.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import yaml

if TYPE_CHECKING:
    from jinja2 import Environment

RECORDS_LANGUAGE = "en"
"""The language of what records say; reports in it quote them."""
NBSP = "\N{NO-BREAK SPACE}"

PhraseRecord = Annotated[dict[str, object], "phrase"]
"""What a JSON file keeps of a phrase; `phrase` is its name among the documents of `dynbench.fields`."""


class Phrase(str):
    """An English text, a string in every respect, that knows what it says.

    Attributes:
        say: id of the sentence.
        values: what the sentence mentions, by name: numbers, names, and other phrases or lists of them.
    """

    say: str
    values: Mapping[str, object]

    def __new__(cls, text: str, say: str = "", **values: object) -> Phrase:
        """A text with its id and values."""
        phrase = super().__new__(cls, text)
        phrase.say, phrase.values = say, values
        return phrase

    @classmethod
    def of(cls, say: str, **values: object) -> Phrase:
        """The sentence of an id with its values.

        Raises:
            KeyError: no such sentence, or a value that it mentions is not given.
        """
        return cls(render(say, values), say, **values)

    @classmethod
    def read(cls, record: Mapping[str, object]) -> Phrase:
        """A phrase from its record; values that are phrases stay records."""
        values = record.get("values")
        known = values if isinstance(values, dict) else {}
        phrase = cls(str(record.get("text", "")), str(record.get("say", "")))
        phrase.values = known  # whatever their names are
        return phrase

    def record(self) -> PhraseRecord:
        """What a JSON file keeps of it."""
        return {"say": self.say, "text": str(self), "values": recorded(self.values)}


def recorded(value: object) -> object:
    """A value of a phrase with every phrase in it as its record; NaN and infinities, which JSON has not, as text."""
    if isinstance(value, Phrase):
        return value.record()
    if isinstance(value, Mapping):
        return {str(key): recorded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [recorded(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def templates_dir() -> Path:
    """The folder of the templates: in the package when installed from a wheel, else the checkout's `report/`."""
    package = Path(str(resources.files("dynbench")))
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "report"


@cache
def texts(language: str = RECORDS_LANGUAGE) -> Mapping[str, str]:
    """Id to template, in the order of the file; ids of findings are `CHECK.seen`, `.limit` and `.hint`, with a case."""
    found: dict[str, str] = yaml.safe_load((templates_dir() / f"records.{language}.yaml").read_text(encoding="utf-8"))
    return found


def render(say: str, values: Mapping[str, object], language: str = RECORDS_LANGUAGE) -> str:
    """The text of an id, filled in.

    Args:
        say: id among `texts`.
        values: as recorded or not; None is no value, lists are joined, phrases are put into the language.
        language: of the text.

    Raises:
        KeyError: the language has no such text, or a value that it mentions is not given.
    """
    text = texts(language)[say]
    if "{" not in text:
        return text
    from jinja2 import UndefinedError

    try:
        return environment(language).get_template(say).render({k: v for k, v in values.items() if v is not None})
    except UndefinedError as error:
        raise KeyError(f"{say}: {error}") from error


def translated(language: str, record: object, text: object = "") -> str:
    """A phrase from its record in a language; as recorded where the language has no text or the record lacks values.

    Args:
        language: to put it into.
        record: as `Phrase.record` made it; anything else is none.
        text: taken where there is no record, or none in it.
    """
    if not isinstance(record, Mapping):
        return str(text)
    found = Phrase.read({"text": text, **record})
    try:
        return found if language == RECORDS_LANGUAGE else render(found.say, found.values, language)
    except KeyError:
        return found


@cache
def environment(language: str) -> Environment:
    """Jinja2 over the texts of a language, imported late: what only knows phrases stays light."""
    from jinja2 import DictLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    separator, space = texts(language)["separator"], " " if language == RECORDS_LANGUAGE else NBSP

    def shown(value: object) -> object:
        if isinstance(value, list | tuple):
            return separator.join(str(shown(item)) for item in value)
        return translated(language, value) if isinstance(value, Mapping) else value

    def form(value: object, spec: str) -> str:
        number = isinstance(value, int | float)
        return format(value, spec).replace("%", f"{space}%") if number else str(value)

    found = SandboxedEnvironment(loader=DictLoader(texts(language)), undefined=StrictUndefined, finalize=shown)
    found.filters |= {"form": form, "plural": lambda number, one, others: one if number == 1 else others}
    return found
