"""Fills a template from values; nothing else.

A template is Markdown with placeholders like `{{ best.speedup }}`, after a YAML front matter that holds its
language-dependent texts. Records are in English; how another language says what stands in them is in
`labels.<language>.yaml` beside its template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from dynbench.config.yaml_strict import Mapping as YamlMapping
from dynbench.config.yaml_strict import parse_yaml
from dynbench.errors import UsageError, did_you_mean
from dynbench.table_text import pipes

LANGUAGES = ("en", "zh")
COMMON = "template"
"""The template whose front matter has every text; it is also that of the question schedule and of single runs."""
CHAPTERS = "{{ chapters }}"
"""Where a template has the chapters of the question."""
RECORDS_LANGUAGE = "en"
"""The language of what records say; reports in it quote them."""

_PLACEHOLDER = re.compile(r"\{\{\s*([\w.]*)\s*\}\}")
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.DOTALL)


class TemplateError(UsageError):
    """A template with unknown placeholders or without its front matter; the message names file and line."""

    kind = "template"


@dataclass(frozen=True)
class Template:
    """A template as read.

    Attributes:
        path: where it was read.
        text: the whole file.
        labels: texts of the language and of the front matter, by dotted key.
        body: the Markdown after the front matter.
    """

    path: Path
    text: str
    labels: Mapping[str, str]
    body: str

    def label(self, key: str, default: str | None = None) -> str:
        """The text of a key.

        Raises:
            TemplateError: the template has no such text and no default was given.
        """
        text = self.labels.get(key, default)
        if text is None:
            raise TemplateError(f"{self.path}: the front matter has no text for '{key}'", "Copy it from report/.")
        return text


def templates_dir() -> Path:
    """The folder of the templates: in the package when installed from a wheel, else the checkout's `report/`."""
    package = Path(str(resources.files("dynbench")))
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "report"


def load_template(language: str, path: Path | None = None, name: str = COMMON) -> Template:
    """The template of a language, or one of the user's own.

    Texts that the user's template leaves out come from the language's template of the name, and what that leaves out
    from `COMMON`, which has all.

    Raises:
        TemplateError: the file cannot be read, or its front matter is not a mapping of texts.
    """
    shipped = [_read_template(templates_dir() / f"{each}.{language}.md") for each in dict.fromkeys((COMMON, name))]
    own = shipped[-1] if path is None else _read_template(path)
    labels = dict(record_labels(language))
    for template in (*shipped, own):
        labels |= template.labels
    return replace(own, labels=labels)


def for_question(template: Template, question: str, chapters: Sequence[str]) -> Template:
    """The template with the texts of a question over the common ones, and its chapters in place of `{{ chapters }}`.

    Raises:
        TemplateError: a chapter that the front matter does not have.
    """
    prefix = f"questions.{question}."
    own = {key.removeprefix(prefix): text for key, text in template.labels.items() if key.startswith(prefix)}
    texts = [
        f"### {template.label(f'chapters.{name}.title')}\n\n{template.label(f'chapters.{name}.text')}"
        for name in chapters
    ]
    body = template.body.replace(CHAPTERS, "\n\n".join(text.rstrip() for text in texts))
    return replace(template, labels={**template.labels, **own}, body=body)


def of_samples(template: Template) -> Template:
    """The template where samples have no lengths: what it says of real tokens is said of samples."""
    keys = [f"of_samples.{each}" for each in ("heading", "many", "one")]
    words = [(template.label(f"{key}.said"), template.label(f"{key}.instead")) for key in keys]

    def said(text: str) -> str:
        for tokens, samples in words:
            text = re.sub(tokens, samples, text)
        return text

    labels = {key: said(text) for key, text in template.labels.items()}
    return replace(template, labels=labels, body=said(template.body))


def record_labels(language: str) -> Mapping[str, str]:
    """How a language says what stands in records, by dotted key; empty for the records' own.

    Placeholders are those of `str.format`, over the values of the record.
    """
    if language == RECORDS_LANGUAGE:
        return {}
    path = templates_dir() / f"labels.{language}.yaml"
    return _parsed_labels(path, path.read_text(encoding="utf-8"))


@cache
def _parsed_labels(path: Path, text: str) -> Mapping[str, str]:
    labels, _ = parse_yaml(text, str(path))
    return _flatten(labels)


def fill(template: Template, values: Mapping[str, str | None]) -> str:
    """The template's body with every placeholder replaced; None becomes the text `words.not_measured`.

    Raises:
        TemplateError: placeholders that are not among the values, each with its line, and the known ones.
    """
    known = {**values, **template.labels}
    problems = []
    for number, line in enumerate(template.text.splitlines(), start=1):
        where = f"{template.path}:{number}"
        for name in _PLACEHOLDER.findall(line):
            if name not in known:
                near = did_you_mean(name, known)
                problems.append(f"{where}: unknown placeholder '{{{{ {name} }}}}' {near}".rstrip())
        if "{{" in _PLACEHOLDER.sub("", line):
            problems.append(f"{where}: a placeholder is not closed on its line: {line.strip()}")
    if problems:
        raise TemplateError("\n".join(problems), f"Known: {', '.join(sorted(values))}; and the front matter's keys.")
    return substitute(template, template.body, values)


def substitute(template: Template, text: str, values: Mapping[str, str | None]) -> str:
    """One text with its placeholders replaced, see `fill`."""
    missing = template.label("words.not_measured")

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        found = values[name] if name in values else template.labels[name]
        return missing if found is None else found

    return _PLACEHOLDER.sub(value, text)


def table(headings: list[str], rows: list[list[str]], numeric_from: int = 1) -> str:
    """A Markdown table; columns from `numeric_from` on are aligned to the right."""
    rule = ["---" if column < numeric_from else "---:" for column in range(len(headings))]
    return pipes([headings, rule, *rows])


def _read_template(path: Path) -> Template:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"{path}: the template cannot be read: {error}", "Give a UTF-8 Markdown file.") from error
    return _parsed(path, text)


@cache
def _parsed(path: Path, text: str) -> Template:
    front = _FRONT_MATTER.match(text)
    if front is None:
        return Template(path, text, {}, text)
    # One blank line stands for the opening ---, so that the parser's line numbers are the file's.
    labels, _ = parse_yaml("\n" + front.group(1), str(path))
    return Template(path, text, _flatten(labels), text[front.end() :])


def _flatten(labels: YamlMapping, prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in labels.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat
