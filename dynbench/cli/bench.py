"""`dynbench bench`: micro-benchmarks, listed and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from dynbench.cli.options import Settings, common_options, name_options, table_option
from dynbench.cli.output import answered, print_line, print_result
from dynbench.cli.plugins import show_kinds

if TYPE_CHECKING:
    from dynbench.bench.bench_run import BenchResult

EPILOG = """\b
Examples:
  dynbench bench ls
  dynbench bench collectives --set sizes_mib=1,10,100 --set processes=4
  dynbench bench flash --set lengths=4096 --set batch=8
  dynbench bench accounting --set fsdp=32
"""


@click.command(epilog=EPILOG)
@click.argument("benchmark", metavar="[NAME]", default="ls")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="An option of the benchmark; repeat.")
@click.option("--full", is_flag=True, help="The sizes for a GPU; small ones are the default.")
@click.option("--no-figures", is_flag=True, help="Leave the figures out.")
@name_options
@table_option
@common_options
def command(settings: Settings, benchmark: str, full: bool, no_figures: bool, name: str | None, replace: bool) -> None:
    """Run the benchmark NAME, small by default; without a name, or as `ls`, list all of them with their options."""
    if benchmark == "ls":
        show_kinds(settings, "bench", ["benchmarks"])
        return
    from dynbench.analysis.figures import draw_figures
    from dynbench.bench.bench_run import run_bench
    from dynbench.bench.options import read_options
    from dynbench.cli.console import working
    from dynbench.plugins import BENCHMARKS
    from dynbench.runs.recorder import named

    entry = BENCHMARKS.find(benchmark)
    options = read_options(benchmark, [*(entry.full if full else ()), *settings.overrides])
    found = entry.load()(options)
    ended: list[BenchResult] = []
    try:
        with working(settings.shows_progress, benchmark) as report:
            result = run_bench(
                benchmark, found, settings.store(), report=report, name=name, replace=replace, on_rows=ended.append
            )
            with named(result.run):
                figures = [] if no_figures else draw_figures("bench", result.run, result.run.figures_dir)
    finally:  # also of what was measured until an error or a signal
        if not settings.as_json and not settings.quiet:
            for so_far in ended:
                _show_rows(found.headers, [row.as_dict() for row in so_far.rows])
    pictures = [path for path in figures if path.suffix == ".png"]
    if not answered(settings, "bench", {**result.as_dict(), "figures": pictures}, str(result.run.path)):
        print_line("")
        for line in found.said(result.rows):
            print_line(line)
        print_line(f"run      {result.run.path}")
        if pictures:
            print_line(f"figures  {len(pictures)} in {result.run.figures_dir}")


def _show_rows(headers: Mapping[str, str], rows: Sequence[Mapping[str, object]]) -> None:
    """The table under the benchmark's headers; where a case could not be measured, with what became of each."""
    why = {"status": "status", "reason": "reason"} if any(row["reason"] for row in rows) else {}
    shown = {**headers, **why}
    print_result(list(shown.values()), [[_cell(row.get(column)) for column in shown] for row in rows], rows)


def _cell(value: object) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
