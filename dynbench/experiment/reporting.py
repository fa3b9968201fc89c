"""From a comparison or run in the registry to a report file: Markdown, or one self-contained HTML page.

On a page images are inlined and mathematics is typeset without a script or a network: emphasis like `*b_g*` and fences
marked `formula` read well as they stand in Markdown, and become real subscripts and superscripts.
"""

from __future__ import annotations

import base64
import html
import mimetypes
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from dynbench.analysis.profile import bottlenecks
from dynbench.analysis.table_specs import TABLES
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.report_facts import buckets_of, link_map_of, strategy_pairs
from dynbench.experiment.report_input import ReportInput
from dynbench.experiment.report_tables import Sources
from dynbench.experiment.report_values import report_values
from dynbench.report import CONTENTS, LANGUAGES, TemplateError, fill, for_question, load_template
from dynbench.runs.atomic import write_text
from dynbench.runs.phrase import templates_dir

_IMAGE = re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8|RIFF....WEBP|\s*<(?:svg|\?xml)", re.DOTALL)
"""How pictures begin; no other file of this machine is shown, whatever links to it."""
_MATHEMATICS = re.compile(r"[_^·=/+−(|…]|^.{1,2}$")
_LABELLED = re.compile(r"\w+ {2,}\S")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")
_SPACE_AT_FULL_WIDTH = re.compile(r"(?<=>) (?=[，。；：、？！）])|(?<=[，。；：、？！）]</strong>) ")
"""Chinese needs a space after emphasis in Markdown, and none on the page."""
_SIGN = re.compile(
    r"(?P<mark>[_^])(?:\{(?P<braced>[^{}]*)\}|(?P<bare>[^\W_]+))|(?P<word>[A-Za-z]{2,}|[\u4e00-\u9fff]+)|[<>&]"
)


def table_of_contents(markdown: str) -> str:
    """Headings of both levels below the title as a nested list of links, with the anchors that GitHub gives them."""
    tokens = MarkdownIt("commonmark").parse(markdown)
    return "\n".join(f"{'  ' * (level - 2)}- [{title}](#{anchor})" for level, title, anchor in _headings(tokens))


def _headings(tokens: list[Token]) -> Iterator[tuple[int, str, str]]:
    """Level, text and anchor of every heading below the title; a heading's token gets its anchor as its id."""
    seen: Counter[str] = Counter()
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open" and opening.tag in ("h2", "h3"):
            text = "".join(child.content for child in inline.children or [])
            anchor = _NOT_IN_ANCHORS.sub("", text.lower()).replace(" ", "-")
            seen[anchor] += 1
            anchor += f"-{seen[anchor] - 1}" if seen[anchor] > 1 else ""
            opening.attrSet("id", anchor)
            yield int(opening.tag[1]), text, anchor


def to_html(markdown: str, images: Path, language: str) -> str:
    """One self-contained page: the style in it, and every image inlined.

    Args:
        markdown: the filled template.
        images: folder that image paths are relative to.
        language: for the page's `lang`, `en` or `zh`.

    Raises:
        TemplateError: an image is not there.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    links = "".join(
        f'<a class="h{level}" href="#{quote(anchor)}">{html.escape(text)}</a>\n'
        for level, text, anchor in _headings(tokens)
    )
    for token in tokens:
        if token.type == "fence" and token.info == "formula":
            token.type, token.content = "html_block", _formula(token.content.rstrip())
        if token.type == "inline" and token.content == CONTENTS:
            token.children = [Token("html_inline", "", 0, content=f"</p><nav>\n{links}</nav><p>")]
        elif token.type == "inline":
            _typeset_emphasis(token.children or [])
            _inline_images(token.children or [], images)
    body = parser.renderer.render(tokens, parser.options, {})
    body = _SPACE_AT_FULL_WIDTH.sub("", body)
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    style = (templates_dir() / "style.css").read_text(encoding="utf-8")
    title = next((tokens[i + 1].content for i, token in enumerate(tokens) if token.tag == "h1"), "dynbench")
    tag = {"zh": "zh-CN"}.get(language, language)
    return (
        f'<!doctype html>\n<html lang="{tag}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n'
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _formula(text: str) -> str:
    """A displayed formula; where lines are indented, or all labelled, what precedes two spaces is a label column."""
    lines = text.splitlines()
    if not any(line.startswith(" ") for line in lines) and not all(_LABELLED.match(line) for line in lines):
        return f'<div class="formula">{_typeset(text)}</div>\n'
    pairs = [line.split("  ", 1) if "  " in line else ["", line] for line in lines]
    cells = "".join(f"<span>{_typeset(label)}</span><span>{_typeset(rest.strip())}</span>\n" for label, rest in pairs)
    return f'<div class="formula columns">{cells}</div>\n'


def _typeset(formula: str) -> str:
    """Plain mathematics as HTML: `x_g`, `x_{a,b}` and `x^2` with real scripts, words upright."""

    def sign(match: re.Match[str]) -> str:
        if match["mark"]:
            tag = "sub" if match["mark"] == "_" else "sup"
            return f"<{tag}>{_typeset(match['braced'] or match['bare'])}</{tag}>"
        return f'<span class="word">{match["word"]}</span>' if match["word"] else html.escape(match[0])

    return _SIGN.sub(sign, formula)


def _typeset_emphasis(children: list[Token]) -> None:
    """Mathematics in emphasis, told from stressed words by its signs or its shortness."""
    for index, opening in enumerate(children):
        if opening.type != "em_open":
            continue
        inside = takewhile(lambda child: child.type != "em_close", children[index + 1 :])
        lines = [child for child in inside if child.type == "text"]
        if any(_MATHEMATICS.search(line.content) for line in lines):
            opening.attrSet("class", "math")
            for line in lines:
                line.type, line.content = "html_inline", _typeset(line.content)


def _inline_images(children: list[Token], folder: Path) -> None:
    for child in children:
        if child.type == "image":
            source = unquote(str(child.attrs["src"]))
            path = folder / source
            if not path.is_file():
                raise TemplateError(
                    f"image {source}: no such file below {folder}", "Give a path relative to the report."
                )
            content = path.read_bytes()
            if not _IMAGE.match(content):
                raise TemplateError(f"image {source}: {path} is no picture", "Give a PNG, JPEG, GIF, WebP or SVG file.")
            kind = mimetypes.guess_type(path.name)[0] or "image/png"
            child.attrs["src"] = f"data:{kind};base64,{base64.b64encode(content).decode()}"


Format = Literal["md", "html"]
FORMATS: tuple[Format, ...] = ("md", "html")

FURTHER = ("strategies", "buckets")
"""Chapters after those of a question."""
NEEDED: Mapping[str, Callable[[ReportInput], object]] = {
    "profile": lambda source: bottlenecks(source.launches),
    "memory": lambda source: TABLES["memory_parts"].table(source.launches),
    "strategies": strategy_pairs,
    "buckets": buckets_of,
    "map": link_map_of,
}
"""Chapters that stand only in reports of which they have something to say."""

_GAPS = re.compile(r"\n{3,}")
"""What placeholders without a text leave between paragraphs."""


def report_files(folder: Path) -> list[tuple[str, Format]]:
    """Language and format of the reports that lie in a folder under their own names."""
    return [(lang, form) for lang in LANGUAGES for form in FORMATS if (folder / f"report.{lang}.{form}").is_file()]


def render_report(
    source: ReportInput,
    language: str,
    form: Format,
    folder: Path,
    template: Path | None = None,
    *,
    short: bool = False,
) -> str:
    """The report's text.

    Args:
        source: what it is made from.
        language: `en` or `zh`.
        form: `md`, or `html` for one self-contained page.
        folder: where the text will lie; Markdown links figures relative to it.
        template: the user's own template, or None.
        short: only the first page, which is all that the template has before its table of contents.

    Raises:
        TemplateError: the template has unknown placeholders.
    """
    question = source.question
    chapters = [name for name in (*question.chapters, *FURTHER) if name not in NEEDED or NEEDED[name](source)]
    loaded = for_question(load_template(language, template, question.template), question.name, chapters)
    sources = Sources(source, read_solved(source.run.path), loaded, folder)
    markdown = _GAPS.sub("\n\n", fill(loaded, report_values(sources)))
    first, contents, rest = markdown.partition(CONTENTS)
    if short:
        markdown = f"{first.rstrip()}\n"
    if form == "html":
        return to_html(markdown, folder, language)
    if contents and not short:
        markdown = f"{first}## {loaded.label('words.contents')}\n\n{table_of_contents(rest)}{rest}"
    return markdown


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
