"""The figures of a report, numbered in the order in which they stand in it, and how the text refers to them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from dynbench.analysis.figures import FIGURES, OF_SOME
from dynbench.experiment.subject import SOLVE_FIGURES, Subject
from dynbench.report import Template, substitute
from dynbench.table_text import Markdown, quoted

UNTOLD = (*SOLVE_FIGURES, *OF_SOME)
"""Figures of some subjects only: where they are not drawn, nothing is said of it."""
_UNUSUAL = re.compile(r"[^\w./~+-]")
"""In paths that are linked."""
_PLACED = re.compile(r"\{\{\s*figure\.(\w+)\s*\}\}")


def number_figures(subject: Subject, template: Template, folder: Path) -> dict[str, str | None]:
    """`figure.NAME` and its `ref.NAME` for every figure of a comparison, `figures.rest` for those not placed.

    Args:
        subject: whose figures.
        template: their captions, and the order in which it places them.
        folder: figures are linked relative to it.
    """
    drawn = {path.stem: path for path in subject.figures}
    placed = list(dict.fromkeys(_PLACED.findall(template.body)))
    order = [name for name in placed if name in drawn] + [name for name in drawn if name not in placed]
    numbers = {name: index for index, name in enumerate(order, start=1)}
    missing = template.label("words.not_drawn")
    images = {name: _image(drawn[name], template, folder, number) for name, number in numbers.items()}
    known = dict.fromkeys((*FIGURES["train"], *SOLVE_FIGURES))
    return {
        **{f"figure.{name}": images.get(name, "" if name in UNTOLD else missing) for name in known},
        **{f"ref.{name}": _reference(template, numbers[name]) if name in numbers else missing for name in known},
        "figures.rest": Markdown("\n\n".join(image for name, image in images.items() if name not in placed)),
    }


def _reference(template: Template, number: int) -> str:
    return substitute(template, template.label("figures.reference"), {"figure.number": str(number)})


def _image(path: Path, template: Template, folder: Path, number: int) -> str:
    caption = template.label(f"figures.{path.stem}", quoted(path.stem.replace("_", " ")))
    caption = f"{_reference(template, number)}{template.label('figures.separator')}{caption}"
    return Markdown(f"![{caption}]({linked(path, folder)})\n{caption}")


def linked(path: Path, folder: Path) -> str:
    """A path as Markdown in a folder links it."""
    return _UNUSUAL.sub(lambda match: quote(match[0]), os.path.relpath(path.resolve(), folder.resolve()))
