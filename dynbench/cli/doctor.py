"""`dynbench doctor`: the machine as a run would record it, and what would go wrong, there or with a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, brief, print_lines, print_pairs, print_table
from dynbench.cli.options import command
from dynbench.errors import ChecksFailed

if TYPE_CHECKING:
    from dynbench.cli.health import Diagnosis

EPILOG = """\b
Examples:
  dynbench doctor                                what works here, and what to do about what does not
  dynbench doctor sst2                           what a recipe needs: files, weights, packages, ranks
  dynbench doctor mine.yaml --set workload.data_path=train.tsv --strict
"""


@command(epilog=EPILOG)
@click.argument("recipe", required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Laid over the recipe, as `compare` does.")
@click.option("--strict", is_flag=True, help="Exit with 6 when a check warns.")
def doctor(settings: Settings, recipe: str | None, strict: bool) -> None:
    """What this machine has, and what would go wrong; with a RECIPE, a file or the name of a shipped one, there too."""
    from dynbench.cli.health import CHECKS, run_checks
    from dynbench.runs.provenance import machine_facts

    if settings.overrides and recipe is None:
        raise click.UsageError("--set changes a recipe, and none is named.")
    facts, unknown = machine_facts()
    found = run_checks(CHECKS, settings)
    of_recipe: dict[str, Diagnosis] = {}
    if recipe is not None:
        from dynbench.cli.health_recipe import check_recipe

        of_recipe = check_recipe(recipe, settings)
    warned = [name for name, it in found.items() if not it.ok]
    warned += [f"{name} of {recipe}" for name, it in of_recipe.items() if not it.ok]
    result = {
        "environment": facts,
        "unknown": unknown,
        "checks": _records(found),
        "recipe": None if recipe is None else {"name": recipe, "checks": _records(of_recipe)},
    }
    failing = strict and bool(warned)  # the error prints the result as JSON then
    if not (failing and settings.as_json) and not settings.printed(result, warned):
        print_pairs("environment", {key: brief(value) for key, value in facts.items() if value is not None})
        _show("", found)
        if recipe is not None:
            _show(f"recipe {recipe}", of_recipe)
        print_lines("", f"{len(warned)} to look at: {', '.join(warned)}" if warned else "nothing stands in the way")
    if failing:
        raise ChecksFailed(f"checks that warn: {', '.join(warned)}", "The next steps are in the checks.", result=result)


def _records(found: Mapping[str, Diagnosis]) -> list[dict[str, object]]:
    return [{"id": name, "ok": it.ok, "seen": it.seen, "hint": it.hint or None} for name, it in found.items()]


def _show(title: str, found: Mapping[str, Diagnosis]) -> None:
    """What was seen, a line a check, and below it what to do where something is."""
    rows = [("ok" if it.ok else "warn", name, it.seen) for name, it in found.items()]
    print_lines("")
    print_table(("", "check", "seen"), rows, title)
    if steps := [(name, it.hint) for name, it in found.items() if it.hint]:
        print_lines("")
        print_table(("check", "next step"), steps)
