"""From a comparison or run in the registry to a report file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from dynbench.experiment.html_page import to_html
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.report_communication import buckets_told, strategies_told
from dynbench.experiment.report_tables import Sources
from dynbench.experiment.report_values import report_values
from dynbench.experiment.subject import Subject
from dynbench.report import LANGUAGES, fill, for_question, load_template
from dynbench.runs.atomic import write_text

Format = Literal["md", "html"]
FORMATS: tuple[Format, ...] = ("md", "html")

FURTHER: Mapping[str, Callable[[Subject], bool]] = {"strategies": strategies_told, "buckets": buckets_told}
"""Chapters after those of a question, of subjects that they say something of."""

_GAPS = re.compile(r"\n{3,}")
"""What placeholders without a text leave between paragraphs."""


def report_files(folder: Path) -> list[tuple[str, Format]]:
    """Language and format of the reports that lie in a folder under their own names."""
    return [(lang, form) for lang in LANGUAGES for form in FORMATS if (folder / f"report.{lang}.{form}").is_file()]


def render_report(subject: Subject, language: str, form: Format, folder: Path, template: Path | None = None) -> str:
    """The report's text.

    Args:
        subject: what it is about.
        language: `en` or `zh`.
        form: `md`, or `html` for one self-contained page.
        folder: where the text will lie; Markdown links figures relative to it.
        template: the user's own template, or None.

    Raises:
        TemplateError: the template has unknown placeholders.
    """
    question = subject.question
    chapters = (*question.chapters, *(name for name, told in FURTHER.items() if told(subject)))
    loaded = for_question(load_template(language, template, question.template), question.name, chapters)
    markdown = fill(loaded, report_values(Sources(subject, read_solved(subject.run.path), loaded, folder)))
    markdown = _GAPS.sub("\n\n", markdown)
    return markdown if form == "md" else to_html(markdown, folder, language)


def write_report(
    subject: Subject,
    language: str = "en",
    form: Format = "md",
    output: Path | None = None,
    template: Path | None = None,
) -> Path:
    """Write a report file and return its path, by default `report.<language>.<form>` in the subject's folder.

    Raises:
        TemplateError: the template has unknown placeholders.
        OSError: the file cannot be written.
    """
    path = output or subject.run.path / f"report.{language}.{form}"
    text = render_report(subject, language, form, path.parent, template)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
