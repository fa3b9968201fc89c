"""`dynbench recipes`, `guide` and `completion`: the recipes, guides and shell completion that ship with dynbench."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import indent
from typing import ClassVar

import click

from dynbench.cli.options import Settings, common_options, table_option
from dynbench.cli.output import (
    next_command,
    print_for_script,
    print_line,
    print_records,
    printed_json,
    refuse_existing,
    writing,
)
from dynbench.table_text import printable

FOLDER = Path(__file__).parents[1] / "guides"
_GUIDE = re.compile(r"\[([^\]]*)\]\((\w+)\.md\)")
_ELSEWHERE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)]*)\)")
"""Links within the guides, and to what a package does not hold."""


@click.group()
def recipes() -> None:
    """List, show and copy the recipes of `compare`.

    NAME is a shipped recipe or the path of a recipe file.
    """


@recipes.command("ls", epilog="Example: dynbench recipes ls")
@table_option
@common_options
def list_recipes(settings: Settings) -> None:
    """All shipped recipes."""
    from dynbench.config.recipes import list_recipes, load_recipe

    rows = [
        {"name": name, "path": path, "description": recipe.description, "arms": list(recipe.arms)}
        for name, path in list_recipes().items()
        for recipe in [load_recipe(path)]
    ]
    if not print_for_script(settings, "recipes ls", {"recipes": rows}, [str(row["name"]) for row in rows]):
        print_records({"recipe": "name", "what it does": "description"}, rows)


@recipes.command("show", epilog="Example: dynbench recipes show quickstart")
@click.argument("name", default="quickstart")
@common_options
def show_recipe(settings: Settings, name: str) -> None:
    """The text of a recipe."""
    from dynbench.config.layers import yaml_text
    from dynbench.config.recipes import find_recipe

    path = find_recipe(name)
    text = yaml_text(path)
    if not printed_json(settings, "recipes show", {"path": path, "text": text}):
        click.echo(printable(text), nl=False)


@recipes.command("cp", epilog="Example: dynbench recipes cp quickstart mine.yaml")
@click.argument("name")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite the target.")
@common_options
def copy_recipe(settings: Settings, name: str, target: Path, force: bool) -> None:
    """Copy a recipe, to change it."""
    from dynbench.config.layers import yaml_text
    from dynbench.config.recipes import find_recipe

    source = find_recipe(name)
    text = yaml_text(source)
    path = target / source.name if target.is_dir() else target
    refuse_existing(path, force)
    with writing(path):
        path.write_text(text, encoding="utf-8")
    if not print_for_script(settings, "recipes cp", {"source": source, "path": path}, str(path)):
        print_line(str(path))
        print_line(f"next  {next_command('compare', str(path), root=settings.store().root)}")


@click.command(epilog="\b\nExamples:\n  dynbench guide\n  dynbench guide verdicts\n")
@click.argument("name", required=False)
@common_options
def guide(settings: Settings, name: str | None) -> None:
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


SHELLS = {
    "bash": 'eval "$(dynbench completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(dynbench completion zsh)" in ~/.zshrc',
    "fish": "dynbench completion fish > ~/.config/fish/completions/dynbench.fish",
}
"""Shell to where its completion is set up."""


@click.command(epilog="\b\nSet it up once:\n" + "".join(f"  {how}\n" for how in SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@common_options
def completion(settings: Settings, shell: str) -> None:
    """Print the script that completes commands, options and their values with the Tab key."""
    from click.shell_completion import get_completion_class

    from dynbench.cli.main import group

    kind = get_completion_class(shell)
    assert kind is not None, "click completes for all of SHELLS"
    script = kind(group, {}, "dynbench", "_DYNBENCH_COMPLETE").source()
    if not printed_json(settings, "completion", {"shell": shell, "script": script}):
        click.echo(script)
