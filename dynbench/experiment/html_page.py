"""Markdown as one self-contained HTML page, with images inlined and mathematics typeset without a script.

Emphasis like `*b_g*` and fences marked `formula` are mathematics: they read well as they stand in Markdown, and become
real subscripts and superscripts on the page, which therefore needs no network.
"""

from __future__ import annotations

import base64
import html
import mimetypes
import re
from itertools import takewhile
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from dynbench.report import TemplateError
from dynbench.runs.phrase import templates_dir

_IMAGE = re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8|RIFF....WEBP|\s*<(?:svg|\?xml)", re.DOTALL)
"""How pictures begin; no other file of this machine is shown, whatever links to it."""
_MATHEMATICS = re.compile(r"[_^·=/+−(|…]|^.{1,2}$")
_LABELLED = re.compile(r"\w+ {2,}\S")
_SPACE_BEFORE_FULL_WIDTH = re.compile(r"(?<=>) ([，。；：、？！）])")
"""Chinese needs a space after emphasis in Markdown, and none on the page."""
_SIGN = re.compile(
    r"(?P<mark>[_^])(?:\{(?P<braced>[^{}]*)\}|(?P<bare>[^\W_]+))|(?P<word>[A-Za-z]{2,}|[\u4e00-\u9fff]+)|[<>&]"
)


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
    for token in tokens:
        if token.type == "fence" and token.info == "formula":
            token.type, token.content = "html_block", _formula(token.content.rstrip())
        if token.type == "inline":
            _typeset_emphasis(token.children or [])
            _inline_images(token.children or [], images)
    body = parser.renderer.render(tokens, parser.options, {})
    body = _SPACE_BEFORE_FULL_WIDTH.sub(r"\1", body)
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
