"""`dynbench recipes`, `guide` and `completion`: the recipes, guides and shell completion that ship with dynbench."""

from __future__ import annotations

import re
from pathlib import Path

import click

from dynbench.cli.common import (
    Settings,
    next_command,
    print_lines,
    print_records,
    refuse_existing,
    show_markdown,
    writing,
)
from dynbench.cli.main import group as dynbench
from dynbench.cli.options import ANY_PATH, command
from dynbench.errors import unknown_name
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


@command("ls", group=recipes, table=True, epilog="Example: dynbench recipes ls")
def list_recipes(settings: Settings) -> None:
    """All shipped recipes."""
    from dynbench.config.recipes import list_recipes, load_recipe

    rows = [
        {"name": name, "path": path, "description": recipe.description, "arms": list(recipe.arms)}
        for name, path in list_recipes().items()
        for recipe in [load_recipe(path)]
    ]
    if not settings.printed({"recipes": rows}, [str(row["name"]) for row in rows]):
        print_records({"recipe": "name", "what it does": "description"}, rows)


@command("show", group=recipes, epilog="Example: dynbench recipes show quickstart")
@click.argument("name", default="quickstart")
def show_recipe(settings: Settings, name: str) -> None:
    """The text of a recipe."""
    from dynbench.config.layers import yaml_text
    from dynbench.config.recipes import find_recipe

    path = find_recipe(name)
    text = printable(yaml_text(path))
    if not settings.printed({"path": path, "text": text}, text.removesuffix("\n")):
        click.echo(text, nl=False)


@command("cp", group=recipes, epilog="Example: dynbench recipes cp quickstart mine.yaml")
@click.argument("name")
@click.argument("target", type=ANY_PATH)
@click.option("--force", is_flag=True, help="Overwrite the target.")
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
    if not settings.printed({"source": source, "path": path}, str(path)):
        print_lines(str(path), f"next  {next_command('compare', str(path), root=settings.store().root)}")


@command(epilog="\b\nExamples:\n  dynbench guide\n  dynbench guide verdicts\n")
@click.argument("name", required=False)
def guide(settings: Settings, name: str | None) -> None:
    """A guide, or without NAME the list of them.

    A terminal shows it laid out; a file or a pipe gets its Markdown.
    """
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.md"))}
    texts = {stem: path.read_text(encoding="utf-8") for stem, path in paths.items()}
    if name is None:
        guides = [{"name": stem, "title": text.partition("\n")[0].removeprefix("# ")} for stem, text in texts.items()]
        if not settings.printed({"guides": guides}, paths):
            print_records({"guide": "name", "what it is about": "title"}, guides)
        return
    if name not in paths:
        raise unknown_name(f"{name!r} is no guide", name, paths)
    if not settings.printed({"name": name, "path": paths[name], "text": texts[name]}, str(paths[name])):
        links = _ELSEWHERE.sub(r"\1 (\2 in the repository)", _GUIDE.sub(r"\1 (dynbench guide \2)", texts[name]))
        show_markdown(texts[name], links)


SHELLS = {
    "bash": 'eval "$(dynbench completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(dynbench completion zsh)" in ~/.zshrc',
    "fish": "dynbench completion fish > ~/.config/fish/completions/dynbench.fish",
}
"""Shell to where its completion is set up."""


@command(epilog="\b\nSet it up once:\n" + "".join(f"  {how}\n" for how in SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(settings: Settings, shell: str) -> None:
    """Print the script that completes commands, options and their values with the Tab key."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click completes for all of SHELLS"
    script = kind(dynbench, {}, "dynbench", "_DYNBENCH_COMPLETE").source()
    if not settings.printed({"shell": shell, "script": script}, script):
        click.echo(script)
