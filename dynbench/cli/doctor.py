"""`dynbench doctor`: the machine as a run would record it, and what would go wrong, there or with a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from dynbench.cli.options import Settings, common_options
from dynbench.cli.output import brief, print_for_script, print_line, print_pairs, print_table
from dynbench.errors import ChecksFailed

if TYPE_CHECKING:
    from dynbench.cli.health import Diagnosis

EPILOG = """\b
Examples:
  dynbench doctor                                what works here, and what to do about what does not
  dynbench doctor sst2                           what a recipe needs: files, weights, packages, ranks
  dynbench doctor mine.yaml --set workload.data_path=train.tsv --strict
"""


@click.command(epilog=EPILOG)
@click.argument("recipe", required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Laid over the recipe, as `compare` does.")
@click.option("--strict", is_flag=True, help="Exit with 6 when a check warns.")
@common_options
def command(settings: Settings, recipe: str | None, strict: bool) -> None:
    """What this machine has, and what would go wrong; with a RECIPE, a file or the name of a shipped one, there too."""
    from dynbench.cli.health import CHECKS, guarded
    from dynbench.runs.provenance import machine_facts

    if settings.overrides and recipe is None:
        raise click.UsageError("--set changes a recipe, and none is named.")
    facts, unknown = machine_facts()
    found = {name: guarded(partial(check, settings)) for name, check in CHECKS.items()}
    of_recipe: dict[str, Diagnosis] = {}
    if recipe is not None:
        from dynbench.cli.health_recipe import recipe_checks

        of_recipe = recipe_checks(recipe, settings)
    warned = [name for name, it in found.items() if not it.ok]
    warned += [f"{name} of {recipe}" for name, it in of_recipe.items() if not it.ok]
    result = {
        "environment": facts,
        "unknown": unknown,
        "checks": _records(found),
        "recipe": None if recipe is None else {"name": recipe, "checks": _records(of_recipe)},
    }
    failing = strict and bool(warned)  # the error prints the result as JSON then
    if not (failing and settings.as_json) and not print_for_script(settings, "doctor", result, warned):
        print_pairs("environment", {key: brief(value) for key, value in facts.items() if value is not None})
        _show("", found)
        if recipe is not None:
            _show(f"recipe {recipe}", of_recipe)
        print_line("")
        print_line(f"{len(warned)} to look at: {', '.join(warned)}" if warned else "nothing stands in the way")
    if failing:
        result = {"schema_version": 1, "command": "doctor", **result}
        raise ChecksFailed(f"checks that warn: {', '.join(warned)}", "The next steps are in the checks.", result=result)


def _records(found: Mapping[str, Diagnosis]) -> list[dict[str, object]]:
    return [{"id": name, "ok": it.ok, "seen": it.seen, "hint": it.hint or None} for name, it in found.items()]


def _show(title: str, found: Mapping[str, Diagnosis]) -> None:
    """What was seen, a line a check, and below it what to do where something is."""
    print_line("")
    print_table(
        ("", "check", "seen"), [("ok" if it.ok else "warn", name, it.seen) for name, it in found.items()], title
    )
    steps = [(name, it.hint) for name, it in found.items() if it.hint]
    if steps:
        print_line("")
        print_table(("check", "next step"), steps)
