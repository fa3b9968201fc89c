"""Reports as Jinja2 templates: values and texts of a language in, Markdown out.

A template is Markdown with placeholders like `{{ best.speedup }}`, after a YAML front matter that holds the words of
its language. Sentences that depend on what was measured are blocks of `sentences/TOPIC.LANGUAGE.md.j2`, and what all
languages have alike is in `sentences/formulas.md.j2`: `{{ say.BLOCK }}` fills a block in. What a template puts out is
text: Markdown in it is quoted, but for what is `Markdown`. Tables' words in other languages are in
`labels.<language>.yaml`, what records say in `records.<language>.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, TemplateSyntaxError, UndefinedError, meta, nodes, pass_context
from jinja2 import Template as Blocks
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context

from dynbench import table_text
from dynbench.config.yaml_strict import YamlMapping, parse_yaml
from dynbench.errors import UsageError, did_you_mean
from dynbench.runs.phrase import NBSP, RECORDS_LANGUAGE, environment, templates_dir
from dynbench.table_text import Markdown, format_interval, format_ratio, format_value, quoted, signed
from dynbench.units import mb, mib

LANGUAGES = ("en", "zh")
COMMON = "template"
"""The template whose front matter has every text; it is also that of the question schedule and of single runs."""
CHAPTERS = "{{ chapters }}"
"""Where a template has the chapters of the question."""
CONTENTS = "{{ contents }}"
"""Where a template has the table of contents; what is above is the first page. A filled text keeps it as it stands."""
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


def each(values: Mapping[str, float], names: Mapping[str, str], between: str = ", ") -> str:
    """`a` 3.4, `b` 1.2: every arm with its value, by the names as they are written."""
    return between.join(f"{names[arm]}{NBSP}{number(value)}" for arm, value in values.items())


def ratio(value: float | None) -> str | None:
    """`1.314`."""
    return format_ratio(value) or None


def interval(ends: tuple[float, float] | None) -> str | None:
    """`[1.251, 1.380]`; None for an estimate."""
    return format_interval(ends).replace(" ", NBSP) or None


def signed_percent(fraction: float | None) -> str | None:
    """`+1.30 %`."""
    return None if fraction is None else f"{signed(100 * fraction, 2)}{NBSP}%"


def signed_ends(ends: Iterable[float], digits: int) -> str:
    """`[-0.20, +2.80]`."""
    return f"[{f',{NBSP}'.join(signed(end, digits) for end in ends)}]"


def signed_interval(change: tuple[float, float, float] | None) -> str | None:
    """`+1.30 % [-0.20, +2.80]`, of a mean and its interval."""
    if change is None:
        return None
    mean, low, high = change
    return f"{signed_percent(mean)} {signed_ends((100 * low, 100 * high), 2)}"


def table(lines: Sequence[Sequence[str]], texts: int, *headings: str) -> Markdown:
    """Lines of cells under their headings, as Markdown; columns that are empty in all lines are left out.

    Args:
        lines: of as many cells as there are headings.
        texts: how many of the first columns are words, which stand to the left.
        headings: one for each column.
    """
    known = [place for place in range(len(headings)) if any(line[place] for line in lines)]
    shown = [[line[place] for place in known] for line in (headings, *lines)]
    return table_text.Table(shown[0], shown[1:], texts=sum(place < texts for place in known)).markdown()


BETWEEN = {"zh": "、"}
"""What stands between the names of a list, by language; else a comma."""


def codes(names: Iterable[object], between: str = ", ") -> str:
    """Names as code, one after the other."""
    return between.join(f"`{name}`" for name in names)


FILTERS: Mapping[str, Callable[..., object]] = {
    "number": number,
    "count": count,
    "percent": percent,
    "signed_percent": signed_percent,
    "signed_interval": signed_interval,
    "ratio": ratio,
    "interval": interval,
    "fixed": lambda value, digits: None if value is None else f"{value:z.{digits}f}",
    "signed": lambda value, digits: None if value is None else signed(value, digits),
    "code": lambda name: None if name is None else f"`{name}`",
    "each": each,
    "table": table,
    "mb": lambda size: None if size is None else mb(size),
    "mib": lambda size: None if size is None else mib(size),
    "signed_ends": signed_ends,
    "codes": codes,
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
    """

    path: Path
    text: str
    labels: Mapping[str, str]
    body: str
    language: str = RECORDS_LANGUAGE

    @property
    def environment(self) -> Environment:
        """Jinja2 with the language's sentences and the filters."""
        return _environment(self.language)

    @property
    def sentences(self) -> Blocks:
        """All blocks of sentences of the language, as one template of Jinja2."""
        return self.environment.get_template(SENTENCES)

    def label(self, key: str, default: str | None = None) -> str:
        """The text of a key.

        Raises:
            TemplateError: the template has no such text and no default was given.
        """
        text = self.labels.get(key, default)
        if text is None:
            raise TemplateError(f"{self.path}: the front matter has no text for '{key}'", "Copy it from report/.")
        return text


def load_template(language: str, path: Path | None = None, name: str = COMMON) -> Template:
    """The template of a language, or one of the user's own.

    Texts that the user's template leaves out come from the language's template of the name, and what that leaves out
    from `COMMON`, which has all.

    Raises:
        TemplateError: the file cannot be read, or its front matter is not a mapping of texts.
    """
    shipped = [_read_template(templates_dir() / f"{each}.{language}.md") for each in dict.fromkeys((COMMON, name))]
    own = shipped[-1] if path is None else _read_template(path)
    labels = dict(language_labels(language))
    for template in (*shipped, own):
        labels |= template.labels
    return replace(own, labels=labels, language=language)


def for_question(template: Template, question: str, chapters: Sequence[str]) -> Template:
    """The template with the texts of a question over the common ones, and its chapters in place of `{{ chapters }}`.

    Raises:
        TemplateError: a chapter that the front matter does not have.
    """
    texts = ((key.partition(f"questions.{question}."), text) for key, text in template.labels.items())
    own = {f"question.{name}": text for (before, _, name), text in texts if name and not before}
    body = template.body.replace(CHAPTERS, "\n\n".join(_chapter(template, name) for name in chapters))
    return replace(template, labels={**template.labels, **own}, body=body)


def _chapter(template: Template, name: str) -> str:
    """Its title, the language's words before what it shows, and those after."""
    before, after = (template.label(f"chapters.{name}.{place}", "") for place in ("before", "after"))
    shown = (f"{{{{ {part} }}}}" for part in _shown_in_chapters()[name])
    return "\n\n".join(filter(None, (f"### {template.label(f'chapters.{name}.title')}", before, *shown, after)))


@cache
def _shown_in_chapters() -> Mapping[str, Sequence[str]]:
    """By chapter its sentences, tables and figures, which all languages have alike."""
    found: dict[str, list[str]] = yaml.safe_load((templates_dir() / "chapters.yaml").read_text(encoding="utf-8"))
    return found


@cache
def language_labels(language: str) -> Mapping[str, str]:
    """The words of tables and figures in a language, by dotted key; empty for English, which stands in the code."""
    path = templates_dir() / f"labels.{language}.yaml"
    return _flatten(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def fill(template: Template, values: Mapping[str, object]) -> str:
    """The template's body filled in; None becomes the text `words.not_measured`.

    Args:
        template: Jinja2 over the values and the front matter's texts, by their dotted keys.
        values: dotted key to value. `{{ say.NAME }}` is the language's block NAME, which `{{ say(NAME, …) }}` gives
            values of its own.

    Raises:
        TemplateError: placeholders that are not among the values, each with its line, and the known ones; or what
            Jinja2 does not understand.
    """
    known = {**values, **template.labels}
    with _as_template_error(template):
        placeholders = list(_placeholders(template.environment.parse(template.text)))
    problems = []
    for line, name in placeholders:
        parts = name.split(".")
        found = any(".".join(parts[: end + 1]) in known for end in range(len(parts)))
        if not found and not (parts[0] == "say" and {*parts[1:]} <= template.sentences.blocks.keys()):
            near = did_you_mean(name, known)
            problems.append(f"{template.path}:{line}: unknown placeholder '{{{{ {name} }}}}' {near}".rstrip())
    if problems:
        raise TemplateError("\n".join(problems), f"Known: {', '.join(sorted(values))}; and the front matter's keys.")
    return substitute(template, template.body, values)


def substitute(template: Template, text: str, values: Mapping[str, object]) -> str:
    """One text filled in, see `fill`."""
    names = _nested({**template.labels, **values})
    names |= {"missing": template.label("words.not_measured"), "say": _Say(template.sentences, names)}
    with _as_template_error(template):
        return Markdown(template.environment.from_string(text).render(names))


@dataclass(frozen=True)
class _Say:
    """`say` of a template: blocks of sentences, filled in when they are named; all else of it is out of its reach."""

    _sentences: Blocks
    _names: Mapping[str, Any]

    def __call__(self, name: str, **of: object) -> Markdown:
        """A block, with values of its own: `say("line", arm=arm)` of a block that others fill in."""
        block = self._sentences.blocks.get(name)
        if block is None:
            raise UndefinedError(f"there is no block {name!r} of sentences")
        try:
            return Markdown(unwrapped("".join(block(self._sentences.new_context({**self._names, **of})))))
        except (LookupError, TypeError, ValueError) as error:  # Jinja2 would take them for a missing attribute
            raise UndefinedError(f"the block {name!r} of sentences cannot be filled in: {error}") from error

    __getitem__ = __call__


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
def _as_template_error(template: Template) -> Iterator[None]:
    """Raises errors of Jinja2 as `TemplateError`, with the line where it is known."""
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
def _environment(language: str) -> Environment:
    """Jinja2 as reports have it, with a language's blocks; sandboxed, as a template may be anybody's."""

    @pass_context
    def shown(context: Context, value: object) -> object:
        text = context["missing"] if value is None else value
        return text if isinstance(text, Markdown | int | float) else quoted(str(text))

    def source(folder: str) -> str | None:
        if folder != SENTENCES:  # no other file of this machine
            return None
        files = [templates_dir() / folder / "formulas.md.j2", *(templates_dir() / folder).glob(f"*.{language}.md.j2")]
        return "".join(file.read_text(encoding="utf-8") for file in files)

    found = environment(language).overlay(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, finalize=shown, loader=FunctionLoader(source)
    )
    between = BETWEEN.get(language, ", ")
    lists = {"codes": partial(codes, between=between), "each": partial(each, between=between)}
    found.filters = {**found.filters, **FILTERS, **lists}
    return found


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
    labels = parse_yaml("\n" + front.group(1), str(path)).mapping
    return Template(path, text, _flatten(labels), text[front.end() :])


def _flatten(labels: YamlMapping, prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in labels.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat
