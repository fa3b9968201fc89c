"""What several comparisons of one recipe showed, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dynbench.analysis.record import ComparisonRecord
from dynbench.cli.next_command import next_command
from dynbench.cli.output import print_line, print_result
from dynbench.experiment.cells import CellsOutcome
from dynbench.experiment.formats import interval, percent, ratio
from dynbench.experiment.subject import read_subject
from dynbench.runs.store import RunStore

COLUMNS: Mapping[str, Callable[[ComparisonRecord], str | None]] = {
    "speed-up": lambda found: ratio(found.speedup),
    "interval": interval,
    "predicted": lambda found: ratio(found.predicted_speedup),
    "launch overhead": lambda found: percent(found.overhead_share),
    "recovered": lambda found: percent(found.recovered_share),
    "efficiency": lambda found: percent(found.efficiency),
}
"""Numbers of a comparison for people; those that no comparison has are left out."""
RECORDED = ("predicted_speedup", "overhead_share", "recovered_share", "efficiency")
"""The same for programs, beside the speed-up and its interval."""


def show_cells(outcome: CellsOutcome) -> None:
    """A table, and where the folders are."""
    results = outcome.run.path.parent
    kinds = {cell.comparison: _ranks(results, cell.comparison) for cell in outcome.cells}
    lines = [
        (cell, kinds[cell.comparison], found)
        for cell, comparisons in zip(outcome.cells, outcome.comparisons, strict=True)
        for found in comparisons
    ]
    columns = {title: show for title, show in COLUMNS.items() if any(show(found) is not None for *_, found in lines)}
    rows, records = [], []
    for cell, ranks, found in lines:
        low, high = found.interval or (None, None)
        facts = found.model_dump(include={"verdict", "level", "speedup"})
        further = {key: getattr(found, key) for key in RECORDED}
        records.append(
            {**cell.settings, "ranks": ranks, "arm": found.candidate, **facts}
            | {"interval_low": low, "interval_high": high, **further, "comparison": cell.comparison}
        )
        numbers = (show(found) for show in columns.values())
        rows.append((cell.label, ranks, found.candidate, found.verdict, *numbers))
    print_result(("settings", "ranks", "arm", "verdict", *columns), rows, records, keys=3)
    print_line("")
    for cell in outcome.cells:
        print_line(f"comparison  {results / cell.comparison}  ({cell.label})")
    if outcome.figures:
        print_line(f"figures     {outcome.run.figures_dir}")
    print_line(f"folder      {outcome.run.path}")
    print_line(f"next        {next_command('report', outcome.cells[0].comparison, root=results)}")


def _ranks(results: Path, comparison: str) -> str:
    """The kind of ranks that a comparison's numbers are of."""
    store = RunStore(results)
    return "virtual" if read_subject(store, store.resolve(comparison)).virtual else "real"
