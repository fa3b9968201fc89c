"""What several comparisons of one recipe showed, a line each."""

from __future__ import annotations

from pathlib import Path

from dynbench.cli.next_command import next_command
from dynbench.cli.output import print_line, print_result
from dynbench.experiment.cells import CellsOutcome
from dynbench.experiment.formats import interval, percent, ratio
from dynbench.experiment.subject import read_subject
from dynbench.runs.store import RunStore

SHARES = ("overhead_share", "recovered_share")
HEADER = ("settings", "ranks", "arm", "verdict", "speed-up", "interval", "predicted", "launch overhead", "recovered")


def show_cells(outcome: CellsOutcome) -> None:
    """A table, and where the folders are."""
    rows, records = [], []
    for cell, comparisons in zip(outcome.cells, outcome.comparisons, strict=True):
        ranks = _ranks(outcome.run.path.parent, cell.comparison)
        for found in comparisons:
            low, high = found.ci95 or (None, None)
            facts = found.model_dump(include={"verdict", "level", "speedup"})
            further = {key: getattr(found, key) for key in ("predicted_speedup", *SHARES)}
            records.append(
                {**cell.settings, "ranks": ranks, "arm": found.candidate, **facts}
                | {"interval_low": low, "interval_high": high, **further, "comparison": cell.comparison}
            )
            numbers = (ratio(found.speedup), interval(found), ratio(found.predicted_speedup))
            shares = (percent(getattr(found, key)) for key in SHARES)
            rows.append((cell.label, ranks, found.candidate, found.verdict, *numbers, *shares))
    print_result(HEADER, rows, records)
    print_line("")
    for cell in outcome.cells:
        print_line(f"comparison  {outcome.run.path.parent / cell.comparison}  ({cell.label})")
    print_line(f"figures     {outcome.run.figures_dir}")
    print_line(f"folder      {outcome.run.path}")
    print_line(f"next        {next_command('report', outcome.cells[0].comparison, root=outcome.run.path.parent)}")


def _ranks(results: Path, comparison: str) -> str:
    """The kind of ranks that a comparison's numbers are of."""
    store = RunStore(results)
    return "virtual" if read_subject(store, store.resolve(comparison)).virtual else "real"
