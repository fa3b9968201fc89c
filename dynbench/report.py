"""Reports as Jinja2 templates: values and texts of a language in, Markdown out.

A template is Markdown with placeholders like `{{ best.speedup }}`, after a YAML front matter that holds the words of
its language. Sentences that depend on what was measured are blocks of `sentences/TOPIC.LANGUAGE.md.j2`, which
`{{ say.BLOCK }}` fills in. Records are in English; how another language says what stands in them is in
`labels.<language>.yaml` beside its template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import (
    Environment,
    FunctionLoader,
    StrictUndefined,
    TemplateSyntaxError,
    UndefinedError,
    meta,
    nodes,
    pass_context,
)
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from dynbench.config.yaml_strict import Mapping as YamlMapping
from dynbench.config.yaml_strict import parse_yaml
from dynbench.errors import UsageError, did_you_mean
from dynbench.table_text import format_interval, format_ratio, format_value
from dynbench.units import mb, mib

LANGUAGES = ("en", "zh")
COMMON = "template"
"""The template whose front matter has every text; it is also that of the question schedule and of single runs."""
CHAPTERS = "{{ chapters }}"
"""Where a template has the chapters of the question."""
NBSP = "\N{NO-BREAK SPACE}"
RECORDS_LANGUAGE = "en"
"""The language of what records say; reports in it quote them."""

SENTENCES = "sentences"
"""Folder of the blocks of sentences, `TOPIC.LANGUAGE.md.j2`, below that of the templates."""
_OWN_LINE = re.compile(r"[-|#!>*] |\||```|!\[")
"""How lines begin that go on no paragraph; a number may be a value of a sentence."""
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.DOTALL)


def number(value: float | None) -> str | None:
    """`1,517`, `237.3`, `0.061`: three or four digits."""
    if value is None:
        return None
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}"
    return format_value(value, "")


def percent(fraction: float | None) -> str | None:
    """`12.3 %`."""
    return None if fraction is None else f"{100 * fraction:z.1f}{NBSP}%"


def count(value: int | None) -> str | None:
    """`1,234,567`, or `1.2·10^34` beyond a million million."""
    if value is None or value < 10**12:
        return None if value is None else f"{value:,}"
    digits = str(value)
    return f"*{digits[0]}.{digits[1]}·10^{len(digits) - 1}*"


def each(values: Mapping[str, Any], names: Mapping[str, str], said: str = "number", beside: str = "ratio") -> str:
    """`a` 3.4, `b` 1.2 (1.100): every arm with its value, or with a pair of values, of which the second may be None.

    Args:
        values: by arm.
        names: of the arms, as they are written.
        said: filter of the value.
        beside: filter of the second one.
    """

    def text(value: Any) -> object:
        first, second = value if isinstance(value, tuple) else (value, None)
        return FILTERS[said](first) if second is None else f"{FILTERS[said](first)} ({FILTERS[beside](second)})"

    return ", ".join(f"{names[arm]}{NBSP}{text(value)}" for arm, value in values.items())


def signed_percent(fraction: float | None) -> str | None:
    """`+1.30 %`."""
    return None if fraction is None else f"{100 * fraction:+.2f}{NBSP}%"


def signed_interval(change: tuple[float, float, float] | None) -> str | None:
    """`+1.30 % [-0.20, +2.80]`, of a mean and its interval."""
    if change is None:
        return None
    mean, low, high = change
    return f"{signed_percent(mean)} [{100 * low:+.2f},{NBSP}{100 * high:+.2f}]"


FILTERS: Mapping[str, Callable[..., object]] = {
    "number": number,
    "count": count,
    "percent": percent,
    "signed_percent": signed_percent,
    "signed_interval": signed_interval,
    "ratio": lambda value: format_ratio(value) or None,
    "interval": lambda ends: format_interval(ends).replace(" ", NBSP) or None,
    "fixed": lambda value, digits, sign="": None if value is None else f"{value:{sign}.{digits}f}",
    "code": lambda name: None if name is None else f"`{name}`",
    "each": each,
    "mb": lambda size: None if size is None else mb(size),
    "mib": lambda size: None if size is None else mib(size),
    "ends": lambda ends, digits, sign="": "[" + f",{NBSP}".join(f"{end:{sign}.{digits}f}" for end in ends) + "]",
    "codes": lambda names, between=", ": between.join(f"`{name}`" for name in names),
}
"""By name in templates; None stays None, which is said in words."""


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
        language: of the blocks of sentences.
        samples: whether work is counted in samples, see `of_samples`.
    """

    path: Path
    text: str
    labels: Mapping[str, str]
    body: str
    language: str = RECORDS_LANGUAGE
    samples: bool = False

    @property
    def environment(self) -> Environment:
        """Jinja2 with the language's sentences and the filters."""
        return _environment(self.language, self.samples)

    @property
    def blocks(self) -> Mapping[str, str]:
        """Name of every block of sentences to its file."""
        return _blocks(self.language, self.samples)

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
    return replace(own, labels=labels, language=language)


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
    labels = {key: _of_samples(template.language, text) for key, text in template.labels.items()}
    return replace(template, labels=labels, body=_of_samples(template.language, template.body), samples=True)


def _of_samples(language: str, text: str) -> str:
    for said, instead in _said_of_samples(language):
        text = re.sub(said, instead, text)
    return text


@cache
def _said_of_samples(language: str) -> list[tuple[str, str]]:
    """Patterns of what templates say of real tokens, and what is said of samples."""
    label = _read_template(templates_dir() / f"{COMMON}.{language}.md").label
    return [(label(f"of_samples.{key}.said"), label(f"of_samples.{key}.instead")) for key in ("heading", "many", "one")]


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


def fill(template: Template, values: Mapping[str, object]) -> str:
    """The template's body filled in; None becomes the text `words.not_measured`.

    Args:
        template: Jinja2 over the values and the front matter's texts, by their dotted keys.
        values: dotted key to value. `{{ say.NAME }}` is the value `say.NAME`, else the language's block NAME.

    Raises:
        TemplateError: placeholders that are not among the values, each with its line, and the known ones; or what
            Jinja2 does not understand.
    """
    known, said = {**values, **template.labels}, template.blocks
    with _told(template):
        placeholders = list(_placeholders(template.environment.parse(template.text)))
    problems = []
    for line, name in placeholders:
        parts = name.split(".")
        told = any(".".join(parts[: end + 1]) in known for end in range(len(parts)))
        if not told and not (parts[0] == "say" and parts[-1] in said):
            near = did_you_mean(name, known)
            problems.append(f"{template.path}:{line}: unknown placeholder '{{{{ {name} }}}}' {near}".rstrip())
    if problems:
        raise TemplateError("\n".join(problems), f"Known: {', '.join(sorted(values))}; and the front matter's keys.")
    return substitute(template, template.body, values)


def substitute(template: Template, text: str, values: Mapping[str, object]) -> str:
    """One text filled in, see `fill`."""
    names = _nested({**template.labels, **values})
    names |= {"missing": template.label("words.not_measured"), "say": _Said(template, names)}
    with _told(template):
        return template.environment.from_string(text).render(names)


class _Said(dict[str, object]):
    """`say` of a template: texts that are among the values; else blocks of sentences, filled in when asked for."""

    def __init__(self, template: Template, names: dict[str, Any]) -> None:
        super().__init__(names.get("say", {}))
        self._template, self._names = template, names

    def __missing__(self, name: str) -> str:
        return self(name)

    def __call__(self, name: str, **of: object) -> str:
        """A block, with values of its own: `say("line", arm=arm)` of a block that others fill in."""
        found = self._template.environment.get_template(self._template.blocks[name])
        return unwrapped("".join(found.blocks[name](found.new_context({**self._names, **of}))))


def unwrapped(text: str) -> str:
    """Paragraphs and list items on a line each, at most one blank line between them; tables and fences as they are."""
    lines: list[str] = []
    fenced = False
    for line in text.strip().splitlines():
        own = line.strip()
        goes_on = bool(own and lines and lines[-1]) and not (fenced or _OWN_LINE.match(own) or lines[-1][0] == "|")
        fenced ^= own.startswith("```")
        if goes_on:
            lines[-1] += f" {own}"
        elif own or fenced or (lines and lines[-1]):
            lines.append(line if fenced else own)
    return "\n".join(lines)


@contextmanager
def _told(template: Template) -> Iterator[None]:
    """What Jinja2 says of a text as an error of the template, with the place where that is known."""
    try:
        yield
    except TemplateSyntaxError as error:
        place = f"{error.filename or template.path}:{error.lineno}"
        raise TemplateError(f"{place}: {error.message}", "Templates are Jinja2; copy one from report/.") from error
    except (UndefinedError, SecurityError) as error:
        raise TemplateError(f"{template.path}: {error.message}", "Copy it from report/.") from error


def _placeholders(tree: nodes.Template) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a text takes from outside; names that it sets itself are left out."""
    outside = meta.find_undeclared_variables(tree)
    inner = {id(node.node) for node in tree.find_all(nodes.Getattr)}
    found = (node for node in tree.find_all((nodes.Getattr, nodes.Name)) if id(node) not in inner)
    for node in found:
        path: list[str] = []
        root: nodes.Node = node
        while isinstance(root, nodes.Getattr):
            path, root = [root.attr, *path], root.node
        if isinstance(root, nodes.Name) and root.name in outside:
            yield node.lineno, ".".join([root.name, *path])


@cache
def _environment(language: str, samples: bool) -> Environment:
    """Jinja2 as reports have it; sandboxed, as a template may be anybody's.

    Args:
        language: whose blocks are there.
        samples: see `of_samples`.
    """

    @pass_context
    def missing(context: Context, value: object) -> object:
        return context["missing"] if value is None else value

    def source(name: str) -> str:
        text = (templates_dir() / name).read_text(encoding="utf-8")
        return _of_samples(language, text) if samples else text

    environment = SandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        finalize=missing, loader=FunctionLoader(source),
    )  # fmt: skip
    environment.filters.update(FILTERS)
    return environment


@cache
def _blocks(language: str, samples: bool) -> Mapping[str, str]:
    """Name of every block of sentences of a language to its file, below the folder of the templates."""
    environment, folder = _environment(language, samples), templates_dir()
    names = [str(path.relative_to(folder)) for path in sorted((folder / SENTENCES).glob(f"*.{language}.md.j2"))]
    return {block: name for name in names for block in environment.get_template(name).blocks}


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    """Values by dotted keys as objects within objects; of two that cannot both stand in a place the later one does."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        place = found
        for part in path:
            if not isinstance(place.get(part), dict):
                place[part] = {}
            place = place[part]
        place[last] = value
    return found


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
