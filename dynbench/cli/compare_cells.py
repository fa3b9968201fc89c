"""What several comparisons of one recipe showed, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dynbench.cli.next_command import next_command
from dynbench.cli.output import print_line, print_result
from dynbench.experiment.cells import CellsOutcome
from dynbench.experiment.formats import interval, percent, speedup
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


def _record(settings: Mapping[str, object], ranks: str, found: Mapping[str, object]) -> dict[str, object]:
    """A line for programs, in full precision."""
    ends = found.get("ci95")
    low, high = ends if isinstance(ends, list | tuple) else (None, None)
    return {
        **settings,
        "ranks": ranks,
        "arm": found.get("candidate"),
        **{key: found.get(key) for key in ("verdict", "level", "speedup")},
        "interval_low": low,
        "interval_high": high,
        **{key: found.get(key) for key in ("predicted_speedup", *SHARES)},
    }


def _cells(label: str, ranks: str, found: Mapping[str, object]) -> tuple[str, ...]:
    predicted = found.get("predicted_speedup")
    return (
        label,
        ranks,
        str(found.get("candidate")),
        str(found.get("verdict")),
        speedup(found) or "",
        interval(found) or "",
        f"{predicted:.3f}" if isinstance(predicted, int | float) else "",
        *(percent(value) or "" if isinstance(value := found.get(key), int | float) else "" for key in SHARES),
    )
