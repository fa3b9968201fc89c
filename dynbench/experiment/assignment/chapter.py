"""The questions with their answers as a document, in a language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from dynbench import __version__, table_text
from dynbench.bench.base import Row
from dynbench.experiment.assignment.evidence import Grid, Said, Table, place
from dynbench.experiment.assignment.questions import QUESTIONS, Question
from dynbench.report import Template, TemplateError, fill, load_template
from dynbench.runs.phrase import texts
from dynbench.table_text import Markdown, quoted

TEMPLATE = "assignment"
MOST_CASES = 3
"""Rows of a source that are named; of more, their number."""
MOST_REASONS = 2
"""Reasons of rows that could not be measured, shown where nothing else is known."""
State = Literal["answered", "answered_small", "needs_gpu", "not_measured"]
Pictures = Mapping[tuple[str, str], str]
"""Run and name of a figure to its path."""


@dataclass(frozen=True)
class Answer:
    """What is known of a question.

    Attributes:
        question: which.
        said: statements, each with its rows.
        runs: ids of the runs that hold the rows, to those of their rows that were used.
        reasons: why rows of the question could not be measured.
    """

    question: Question
    said: Sequence[Said]
    runs: dict[str, list[Row]]
    reasons: Sequence[str]

    @property
    def state(self) -> State:
        """Answered at the sizes asked for, or by smaller ones of a CPU; needs a GPU, or only to be measured."""
        if not self.said:
            return "not_measured" if self.question.gpu is None else "needs_gpu"
        on_gpu = any(row.device != "cpu" for row in _rows(self.said))
        return "answered" if on_gpu or self.question.gpu is None else "answered_small"

    def as_dict(self) -> dict[str, object]:
        """What `--json` prints of it."""
        return {
            "number": self.question.number,
            "state": self.state,
            "sources": [{"run": run, "cases": [row.case for row in rows]} for run, rows in self.runs.items()],
            "command": self.question.command,
            "gpu_command": self.question.gpu,
        }


def answers(tables: Sequence[Table]) -> list[Answer]:
    """Every question with what these rows say of it."""
    return [_answered(question, tables) for question in QUESTIONS]


def _answered(question: Question, tables: Sequence[Table]) -> Answer:
    found = question.rows(tables)
    said = question.answer([row for _, row in found])
    used = {id(row) for row in _rows(said)}
    runs: dict[str, list[Row]] = {}
    for source, row in found:
        if id(row) in used:
            runs.setdefault(source.run, []).append(row)
    reasons = dict.fromkeys(str(row.reason) for _, row in found if row.status != "ok" and row.reason)
    return Answer(question, said, runs, list(reasons))


def _rows(said: Sequence[Said]) -> list[Row]:
    return [row for one in said for row in one.rows]


def render(tables: Sequence[Table], subject: str, language: str, pictures: Pictures = MappingProxyType({})) -> str:
    """The document as Markdown.

    Args:
        tables: what was measured.
        subject: id of the run that it is of.
        language: `en` or `zh`.
        pictures: figures of the runs, as they are linked.

    Raises:
        TemplateError: the template lacks a text, or asks for what is not known.
    """
    template = load_template(language, None, TEMPLATE)
    found = answers(tables)
    counts = {state: sum(each.state == state for each in found) for state in template_states()}
    values = {
        "assignment.subject": f"`{subject}`",
        "assignment.date": f"{datetime.now(UTC):%Y-%m-%d}",
        "assignment.version": __version__,
        "assignment.count": str(len(found)),
        "assignment.devices": ", ".join(dict.fromkeys(place(row) for each in found for row in _rows(each.said)))
        or None,
        "assignment.overview": _overview(found, template),
        "assignment.answers": Markdown("\n\n".join(_section(each, template, pictures) for each in found)),
        **{f"assignment.{state}": str(count) for state, count in counts.items()},
    }
    return fill(template, values)


def template_states() -> tuple[State, ...]:
    """All states, as they are counted."""
    return ("answered", "answered_small", "needs_gpu", "not_measured")


def text(template: Template, key: str, values: dict[str, object]) -> str:
    """A text with its values filled in.

    Raises:
        TemplateError: the language has no such text, or it asks for a value that is not known.
    """
    try:
        return template.label(key).format_map({name: _words(value, template) for name, value in values.items()})
    except KeyError as error:
        raise TemplateError(f"{template.path}: '{key}' lacks {error} beside {', '.join(values)}", "Add it.") from None


def _words(value: object, template: Template) -> str:
    """The items of a list in words of the language; anything else as it is."""
    if not isinstance(value, list):
        return quoted(str(value))
    words = ([item] if isinstance(item, str) else item for item in value)
    return _joined((" ".join(template.label(f"cells.{word}", str(word)) for word in each) for each in words), template)


def _joined(items: Iterable[str], template: Template) -> str:
    return texts(template.language)["separator"].join(map(quoted, items))


def _overview(found: Sequence[Answer], template: Template) -> str:
    cells = [
        [each.question.number, template.label(f"asked.{each.question.number}"), template.label(f"states.{each.state}")]
        for each in found
    ]
    headings = [template.label(f"headings.{name}") for name in ("number", "asked", "state")]
    return table_text.Table(headings, cells, texts=3).markdown()


def _section(answer: Answer, template: Template, pictures: Pictures) -> str:
    number = answer.question.number
    parts = [f"### {number} {template.label(f'asked.{number}')}"]
    for one in answer.said:
        parts.append(text(template, f"said.{one.key}", dict(one.values)))
        if one.grid is not None:
            parts.append(_grid(one.grid, template))
    for name in answer.question.figures:
        parts += [_picture(path, name, template) for run in answer.runs if (path := pictures.get((run, name)))]
    return "\n\n".join([*parts, _source(answer, template)])


def _picture(path: str, name: str, template: Template) -> str:
    """A figure with its caption."""
    caption = template.label(f"figures.{name}")
    return f"![{caption}]({path})\n{caption}"


def _grid(grid: Grid, template: Template) -> str:
    headings = [template.label(f"headings.{name}", name) for name in grid.headings]
    cells = [[template.label(f"cells.{cell}", cell) for cell in row] for row in grid.cells]
    return table_text.Table(headings, cells, texts=grid.keys).markdown()


def _source(answer: Answer, template: Template) -> str:
    """Where it is from, what a GPU would add, or what makes the rows that are missing."""
    question, lines = answer.question, []
    if answer.said:
        named = [
            text(template, "sources.run", {"run": run, "cases": _cases(rows, template)})
            for run, rows in answer.runs.items()
        ]
        lines.append(text(template, "sources.from", {"named": _joined(named, template)}))
    commands: dict[str, object] = {"command": question.command, "gpu": question.gpu or ""}
    if answer.state != "answered":
        tried = answer.state == "needs_gpu" and answer.reasons
        lines.append(text(template, "sources.tried" if tried else f"sources.{answer.state}", commands))
    if not answer.said and answer.reasons:
        reasons = "; ".join(answer.reasons[:MOST_REASONS])
        lines.append(text(template, "sources.reasons", {"reasons": reasons}))
    return template.label("sources.between").join(lines)


def _cases(rows: Sequence[Row], template: Template) -> str:
    cases = list(dict.fromkeys(row.case for row in rows))
    if len(cases) > MOST_CASES:
        return text(template, "sources.many", {"count": len(rows)})
    return _joined((f"`{case}`" for case in cases), template)
