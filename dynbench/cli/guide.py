"""`dynbench guide`: the guides of the package, in the terminal."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import indent
from typing import ClassVar

import click

from dynbench.cli.options import Settings, common_options
from dynbench.cli.output import print_for_script, print_records

FOLDER = Path(__file__).parents[1] / "guides"
_GUIDE = re.compile(r"\[([^\]]*)\]\((\w+)\.md\)")
_ELSEWHERE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)]*)\)")
"""Links within the guides, and to what a package does not hold."""


@click.command(epilog="\b\nExamples:\n  dynbench guide\n  dynbench guide verdicts\n")
@click.argument("name", required=False)
@common_options
def command(settings: Settings, name: str | None) -> None:
    """A guide, or without NAME the list of them.

    A terminal shows it laid out; a file or a pipe gets its Markdown.
    """
    from dynbench.errors import UsageError, did_you_mean

    paths = {path.stem: path for path in sorted(FOLDER.glob("*.md"))}
    if name is None:
        guides = [{"name": stem, "title": _title(path)} for stem, path in paths.items()]
        if not print_for_script(settings, "guide", {"guides": guides}, paths):
            print_records({"guide": "name", "what it is about": "title"}, guides)
        return
    if name not in paths:
        raise UsageError(f"{name!r} is no guide. {did_you_mean(name, paths)}", f"Known: {', '.join(paths)}.")
    text = paths[name].read_text(encoding="utf-8")
    if not print_for_script(settings, "guide", {"name": name, "path": paths[name], "text": text}, str(paths[name])):
        _show(text)


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().removeprefix("# ").strip()


def _show(text: str) -> None:
    """Laid out on a terminal, commands in whole lines to be pasted."""
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Markdown
    from rich.text import Text

    class Verbatim(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(indent(f"{self.text}".rstrip(), "    "), "cyan", no_wrap=True, overflow="ignore")

    class Guide(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": Verbatim, "code_block": Verbatim}

    text = _ELSEWHERE.sub(r"\1 (\2 in the repository)", _GUIDE.sub(r"\1 (dynbench guide \2)", text))
    console = Console(width=min(100, Console().width), soft_wrap=False)
    console.print(Guide(text), crop=False)
