"""What several comparisons of one recipe showed, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dynbench.analysis.record import ComparisonRecord
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
    kinds = [_ranks(outcome.run.path.parent, cell.comparison) for cell in outcome.cells]
    rows = [
        _cells(cell.label, kind, found)
        for cell, kind, comparisons in zip(outcome.cells, kinds, outcome.comparisons, strict=True)
        for found in comparisons
    ]
    records = [
        _record(cell.settings, kind, found) | {"comparison": cell.comparison}
        for cell, kind, comparisons in zip(outcome.cells, kinds, outcome.comparisons, strict=True)
        for found in comparisons
    ]
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


def _record(settings: Mapping[str, object], ranks: str, found: ComparisonRecord) -> dict[str, object]:
    """A line for programs, in full precision."""
    low, high = found.ci95 or (None, None)
    return {
        **settings,
        "ranks": ranks,
        "arm": found.candidate,
        **found.model_dump(include={"verdict", "level", "speedup"}),
        "interval_low": low,
        "interval_high": high,
        **{key: getattr(found, key) for key in ("predicted_speedup", *SHARES)},
    }


def _cells(label: str, ranks: str, found: ComparisonRecord) -> tuple[str, ...]:
    shares = (percent(getattr(found, key)) or "" for key in SHARES)
    return (
        label,
        ranks,
        found.candidate,
        found.verdict,
        ratio(found.speedup) or "",
        interval(found) or "",
        ratio(found.predicted_speedup) or "",
        *shares,
    )
