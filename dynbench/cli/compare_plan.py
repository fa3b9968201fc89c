"""What a comparison will do, and what came of one with cells."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dynbench.analysis.record import ComparisonRecord
from dynbench.cli.common import FLAGS, Columns, Settings, next_command, print_lines, print_records, writing
from dynbench.config.recipe_file import recipe_yaml, sweep_document, written_recipe
from dynbench.config.recipes import Recipe, dump_recipe, resolve_cells
from dynbench.config.values import short_keys
from dynbench.experiment.cells import CellsOutcome
from dynbench.experiment.compare import on_first_node
from dynbench.experiment.launch_plan import CompareState, plan_state
from dynbench.experiment.preflight import Startable, arms_alike, estimate
from dynbench.experiment.report_input import read_report_input
from dynbench.report import interval, percent, ratio
from dynbench.runs.store import RunStore

_log = logging.getLogger(__name__)

NUMBERS: Mapping[str, Callable[[ComparisonRecord], str | None]] = {
    "speed-up": lambda found: ratio(found.speedup),
    "interval": lambda found: interval(found.interval),
    "predicted": lambda found: ratio(found.predicted_speedup),
    "launch overhead": lambda found: percent(found.overhead_share),
    "recovered": lambda found: percent(found.recovered),
    "efficiency": lambda found: percent(found.efficiency),
}
"""Numbers of a comparison for people; those that no comparison has are left out."""
RECORDED = ("predicted_speedup", "overhead_share", "recovered_share", "efficiency")
"""The same for programs, beside the speed-up and its interval."""


def load(
    reference: str | None,
    arms: Sequence[str],
    over: Sequence[str],
    question: str | None,
    settings: Settings,
) -> tuple[list[Recipe], dict[str, object]]:
    """The comparisons that the options mean, and the recipe that says the same without them.

    Raises:
        ConfigError: every mistake in a file and in the options.
        UsageError: no recipe is meant, or a file cannot be read.
    """
    short = short_keys({flag.names[0].removeprefix("--"): flag.key for flag in FLAGS})
    config = None if settings.config_path is None else str(settings.config_path)
    name, document = sweep_document(reference, config, arms, over, short=short, shared=settings.sets)
    if question is not None:
        document.mapping = {**document.mapping, "question": question}
    recipes = resolve_cells(name, document, settings.overrides, settings.flags, settings.launches, paths=True)
    return recipes, written_recipe(document, settings.overrides, settings.flags, recipes)


def save(written: Mapping[str, object], recipe: Recipe, file: str) -> None:
    """Write a recipe to a file that is not there yet; of several nodes, the first does.

    Raises:
        UsageError: it is there, or cannot be written.
    """
    if not on_first_node(recipe):
        return
    with writing(f"--save-recipe {file}"), Path(file).open("x", encoding="utf-8") as opened:
        opened.write(f"# dynbench compare {shlex.quote(file)}\n{recipe_yaml(written)}")


def warn_alike(recipes: Sequence[Recipe], store: RunStore) -> list[list[str]]:
    """Say on stderr which arms are configured alike, and return their names."""
    found = list(dict.fromkeys(tuple(names) for recipe in recipes for names in arms_alike(recipe, store)))
    for names in found:
        _log.info(
            "arms %s are configured alike (A/A): they show this machine's noise, and none of them is recommended",
            " and ".join(names),
        )
    return [list(names) for names in found]


def show_plan(
    recipes: Sequence[Recipe],
    startable: Sequence[Startable],
    written: Mapping[str, object],
    warnings: Sequence[str],
    settings: Settings,
) -> None:
    """The recipe, with the question, launches and their time as remarks; all settings under `-v` and `--json`."""
    store = settings.store()
    alike = warn_alike(recipes, store)
    expected = estimate(recipes, store)
    planned = [
        plan_state(recipe.name, recipe.baseline, one.grouping, recipe.launches.planned, dict.fromkeys(recipe.arms, 0))
        for recipe, one in zip(recipes, startable, strict=True)
    ]
    if settings.as_json:
        plans = [
            {
                "recipe": recipe.name,
                "question": one.question.name,
                "settings": recipe.cell,
                "baseline": recipe.baseline,
                "arms": {name: config.model_dump(mode="json") for name, config in recipe.arms.items()},
                "launches": [{"arm": it.arm, "block": it.block, "launch": it.launch} for it in state.launches],
                "mode": state.mode,
                "mode_reason": state.reason,
            }
            for recipe, one, state in zip(recipes, startable, planned, strict=True)
        ]
        content = plans[0] if len(plans) == 1 else {"cells": plans}
        about = {"estimated_s": expected.seconds, "alike": alike}
        settings.printed({"dry_run": True, "recipe_file": written, **content, **about, "warnings": warnings})
        return
    whole = [[f"# {line}" for line in dump_recipe(recipe).splitlines()] for recipe in recipes]
    launches = Counter(map(_launches, planned))
    print_lines(
        recipe_yaml(written).rstrip(),
        *("\n".join(["\n# in full:", *lines]) for lines in (whole if settings.verbosity > 0 else ())),
        f"\n# question: {startable[0].question.name}, {startable[0].question.description}",
        *(f"# {text}" if len(recipes) == 1 else f"# {count} comparisons of {text}" for text, count in launches.items()),
        f"# {expected}",
    )


def _launches(state: CompareState) -> str:
    """The launches of a comparison in a line."""
    shared = [" ".join(state.launches[index].arm for index in members) for members in state.launch_members]
    return f"{len(shared)} launches, {state.mode} ({state.reason}): {'; '.join(shared)}"


def show_cells(outcome: CellsOutcome) -> None:
    """A table, and where the folders are."""
    results = outcome.run.path.parent
    kinds = {cell.comparison: _ranks(results, cell.comparison) for cell in outcome.cells}
    lines = [(cell, found) for cell, many in zip(outcome.cells, outcome.comparisons, strict=True) for found in many]
    records, rows = [], []
    for cell, found in lines:
        about = {"ranks": kinds[cell.comparison], "arm": found.candidate}
        low, high = found.interval or (None, None)
        records.append(
            {**cell.settings, **about, **found.model_dump(include={"verdict", "level", "speedup"})}
            | {"interval_low": low, "interval_high": high, **{key: getattr(found, key) for key in RECORDED}}
            | {"comparison": cell.comparison}
        )
        numbers = {title: show(found) for title, show in NUMBERS.items()}
        rows.append({"settings": cell.label, **about, "verdict": found.verdict, **numbers})
    empty = {title for title in NUMBERS if all(row[title] is None for row in rows)}
    titles = (title for title in ("settings", "ranks", "arm", "verdict", *NUMBERS) if title not in empty)
    columns: Columns = {title: title for title in titles}
    print_records(columns, rows, records, keys=3)
    print_lines(
        "",
        *(f"comparison  {results / cell.comparison}  ({cell.label})" for cell in outcome.cells),
        f"figures     {outcome.run.figures_dir}" if outcome.figures else None,
        f"folder      {outcome.run.path}",
        f"next        {next_command('report', outcome.cells[0].comparison, root=results)}",
    )


def _ranks(results: Path, comparison: str) -> str:
    """The kind of ranks that a comparison's numbers are of."""
    store = RunStore(results)
    return "virtual" if read_report_input(store, store.resolve(comparison)).virtual else "real"
