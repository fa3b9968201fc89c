"""The page of all fields, from the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dynbench.fields.classes import Field
from dynbench.fields.tables import Document, documents

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
