"""`dynbench compare`: a recipe's arms launched in a fair order, analyzed and reported."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, next_command, print_json, print_lines, show_warnings
from dynbench.cli.options import GATE, LAUNCHES, QUESTION, command
from dynbench.errors import RunLookupError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynbench.config.recipes import Recipe
    from dynbench.experiment.cells import CellsOutcome
    from dynbench.experiment.compare import Outcome
    from dynbench.runs.run import Run
    from dynbench.runs.store import Naming, RunStore

EPILOG = """\b
Examples:
  dynbench compare                                   the quickstart: no network, no GPU
  dynbench compare recipes/sst2.yaml --steps 50 --launches 2
  dynbench compare --arm static:mode=static --arm part:policy=partition --over global_batch=32,64
  dynbench compare mine.yaml --half-width 3% --max-time 30m
  dynbench compare --resume @latest:compare          go on with what is missing
  dynbench compare mine.yaml --fail-on slower        exit 6 when an arm is SLOWER than the baseline
"""


@command(
    named=True,
    table=True,
    options=(*LAUNCHES, QUESTION, *GATE),
    config=("workload", "schedule", "sync", "compress", "train", "launch", "analysis"),
    defaults=False,
    epilog=EPILOG,
)
@click.argument("recipe", required=False)
@click.option("--arm", "arms", multiple=True, metavar="NAME:KEY=VALUE,…", help="An arm and what sets it apart; repeat.")
@click.option(
    "--over", multiple=True, metavar="KEY=VALUE,…", help="Compare under each value; several: each combination."
)
@click.option("--save-recipe", metavar="FILE", help="Write the recipe that says the same, also under --dry-run.")
@click.option("--resume", metavar="COMPARISON", help="Go on with an interrupted comparison.")
@click.option("--dry-run", is_flag=True, help="Print the recipe, its launches and their time; launch nothing.")
def compare(
    settings: Settings,
    recipe: str | None,
    arms: tuple[str, ...],
    over: tuple[str, ...],
    save_recipe: str | None,
    resume: str | None,
    question: str | None,
    strict: bool,
    fail_on: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Run the experiment of a RECIPE: a file, or the name of a shipped one (default: quickstart).

    --arm adds an arm to it. Without a RECIPE the arms given are all there is, on the defaults or the settings of
    -c FILE, and the first is the baseline. KEY is a dotted key, or its last part where no other key ends so (policy
    for schedule.policy); VALUE is what YAML would read: [6,5], null, 'quoted, text'. Options that set configuration
    fields hold for all arms.
    """
    if dry_run and settings.form != "table":
        raise click.UsageError(f"--dry-run prints a recipe, --format {settings.form} asks for a table; leave one out.")
    from dynbench.analysis.gate import judge, read_conditions

    conditions = read_conditions(fail_on)
    store, naming = settings.store(), settings.naming
    if resume is not None:
        from dynbench.runs.store import RunStore

        others = (recipe, *arms, *over, save_recipe, *settings.launches.values(), question, *naming.values(), dry_run)
        if settings.configures or any(others):
            raise UsageError(
                "--resume goes on with the comparison's own recipe and settings and takes no others",
                "Leave them out, or start a new comparison without --resume.",
            )
        comparison = _comparison(store, resume)
        store = RunStore.of(comparison)
    else:
        with settings.working("checking the recipe"):
            from dynbench.cli.compare_plan import load, save, show_plan, warn_alike  # seconds, of which the line tells
            from dynbench.experiment.compare import on_first_node
            from dynbench.experiment.preflight import check_startable, recipe_warnings

            loaded, written = load(recipe, arms, over, question, settings)
            if on_first_node(loaded[0]):
                store.check_name(naming["name"], naming["replace"])
            startable = [check_startable(each, store) for each in loaded]
            warnings = recipe_warnings(loaded, store)
        show_warnings(warnings)
        if save_recipe is not None:
            save(written, loaded[0], save_recipe)
        if dry_run:
            show_plan(loaded, startable, written, warnings, settings)
            return
        warn_alike(loaded, store)
        comparison = _start(loaded, written, store, naming)
        comparison.update(warnings=warnings)
    outcome = _run(comparison, store, settings)
    if not settings.as_json:
        _show(outcome, settings)
    result = outcome.as_dict()
    compared = [item for found in outcome.comparisons for item in found]
    judge(conditions, strict, compared, outcome.findings, result)
    if settings.as_json:
        print_json(result)


def _comparison(store: RunStore, reference: str) -> Run:
    """The comparison that is meant.

    Raises:
        RunLookupError: something else is.
    """
    from dynbench.runs.store import results_option

    run = store.resolve(reference)
    made_by = run.record().command
    if made_by == "compare":
        return run
    option = results_option(store.root)
    hint = f"dynbench compare RECIPE{option} starts one; a run is trained anew, dynbench train never goes on with one."
    incomplete = [other for other, it in store.entries() if it.command == "compare" and it.status != "completed"]
    if incomplete:
        resumes = ", ".join(f"--resume {shlex.quote(other.label)}{option}" for other in incomplete[-5:])
        hint = f"Not completed: {resumes}."
    raise RunLookupError(f"--resume {reference}: {run.label} is an entry of `{made_by}`, not a comparison", hint)


def _start(recipes: Sequence[Recipe], written: Mapping[str, object], store: RunStore, naming: Naming) -> Run:
    if len(recipes) == 1:
        from dynbench.experiment.compare import start_comparison

        return start_comparison(recipes[0], store, **naming)
    from dynbench.config.recipe_file import recipe_yaml
    from dynbench.experiment.cells import start_cells

    return start_cells(recipes, store, text=recipe_yaml(written), **naming)


def _run(comparison: Run, store: RunStore, settings: Settings) -> Outcome | CellsOutcome:
    from dynbench.cli.console import LAUNCHES, display, stderr
    from dynbench.experiment.cells import holds_cells, run_cells
    from dynbench.experiment.compare import run_comparison

    def run_one(run: Run, which: str = "") -> Outcome:
        if which and settings.shows_progress:
            stderr.print(f"comparison {which}", soft_wrap=True)
        with display(settings.shows_progress, "starting", LAUNCHES) as shown:
            return run_comparison(run, store, shown.on_launches, shown.on_stage)

    return run_cells(comparison, store, run_one) if holds_cells(comparison) else run_one(comparison)


def _show(outcome: Outcome | CellsOutcome, settings: Settings) -> None:
    """Table, verdicts and checks as `analyze` shows them, and where the reports are; of several, a line each."""
    from dynbench.cli.analyze import show_report, show_verdicts
    from dynbench.cli.compare_plan import show_cells
    from dynbench.experiment.compare import Outcome

    if isinstance(outcome, Outcome):
        if settings.quiet:
            show_verdicts(outcome.analysed)
        else:
            entry = outcome.analysed.folder
            more = next_command("analyze", entry.label, "-v", root=entry.path.parent)
            show_report(outcome.analysed, settings, more, outcome.reports)
    elif settings.quiet:
        print_lines(str(outcome.run.path))
    else:
        show_cells(outcome)
