"""From a comparison or run in the registry to a report file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from dynbench.analysis.profile import bottlenecks
from dynbench.experiment.html_page import to_html
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.report_communication import buckets_of, served_arms, strategy_pairs
from dynbench.experiment.report_input import ReportInput
from dynbench.experiment.report_tables import Sources
from dynbench.experiment.report_values import report_values
from dynbench.report import LANGUAGES, fill, for_question, load_template
from dynbench.runs.atomic import write_text

Format = Literal["md", "html"]
FORMATS: tuple[Format, ...] = ("md", "html")

FURTHER = ("strategies", "buckets")
"""Chapters after those of a question."""
NEEDED: Mapping[str, Callable[[ReportInput], object]] = {
    "profile": lambda source: bottlenecks(source.launches),
    "server": served_arms,
    "growth": served_arms,
    "strategies": strategy_pairs,
    "buckets": buckets_of,
}
"""Chapters that stand only in reports of which they have something to say."""

_GAPS = re.compile(r"\n{3,}")
"""What placeholders without a text leave between paragraphs."""


def report_files(folder: Path) -> list[tuple[str, Format]]:
    """Language and format of the reports that lie in a folder under their own names."""
    return [(lang, form) for lang in LANGUAGES for form in FORMATS if (folder / f"report.{lang}.{form}").is_file()]


def render_report(source: ReportInput, language: str, form: Format, folder: Path, template: Path | None = None) -> str:
    """The report's text.

    Args:
        source: what it is made from.
        language: `en` or `zh`.
        form: `md`, or `html` for one self-contained page.
        folder: where the text will lie; Markdown links figures relative to it.
        template: the user's own template, or None.

    Raises:
        TemplateError: the template has unknown placeholders.
    """
    question = source.question
    chapters = [name for name in (*question.chapters, *FURTHER) if name not in NEEDED or NEEDED[name](source)]
    loaded = for_question(load_template(language, template, question.template), question.name, chapters)
    sources = Sources(source, read_solved(source.run.path), loaded, folder)
    markdown = _GAPS.sub("\n\n", fill(loaded, report_values(sources)))
    return markdown if form == "md" else to_html(markdown, folder, language)


def write_report(
    source: ReportInput,
    language: str = "en",
    form: Format = "md",
    output: Path | None = None,
    template: Path | None = None,
) -> Path:
    """Write a report file and return its path, by default `report.<language>.<form>` in the folder reported on.

    Raises:
        TemplateError: the template has unknown placeholders.
        OSError: the file cannot be written.
    """
    path = output or source.run.path / f"report.{language}.{form}"
    text = render_report(source, language, form, path.parent, template)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
