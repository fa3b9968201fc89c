"""`dynbench recipes`: the experiments that ship with dynbench, listed, shown and copied."""

from __future__ import annotations

from pathlib import Path

import click

from dynbench.cli.next_command import next_command
from dynbench.cli.options import Settings, common_options, table_option
from dynbench.cli.output import print_for_script, print_line, print_records, printed_json, refuse_existing, writing
from dynbench.table_text import printable


@click.group()
def command() -> None:
    """List, show and copy the recipes of `compare`.

    NAME is a shipped recipe or the path of a recipe file.
    """


@command.command("ls", epilog="Example: dynbench recipes ls")
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


@command.command("show", epilog="Example: dynbench recipes show quickstart")
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


@command.command("cp", epilog="Example: dynbench recipes cp quickstart mine.yaml")
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
