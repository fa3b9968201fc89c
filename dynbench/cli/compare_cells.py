"""What several comparisons of one recipe showed, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynbench.experiment.cells import CellsOutcome

SHARES = ("overhead_share", "recovered_share")
HEADER = ("settings", "arm", "verdict", "speed-up", "interval", "predicted", "launch overhead", "recovered")


def show_cells(outcome: CellsOutcome) -> None:
    """A table, and where the folders are."""
    from dynbench.cli.output import print_line, print_table

    rows = [
        _cells(cell.label, found)
        for cell, comparisons in zip(outcome.cells, outcome.comparisons, strict=True)
        for found in comparisons
    ]
    print_table(HEADER, rows)
    print_line("")
    for cell in outcome.cells:
        print_line(f"comparison  {outcome.run.path.parent / cell.comparison}  ({cell.label})")
    print_line(f"figures     {outcome.run.figures_dir}")
    print_line(f"folder      {outcome.run.path}")
    print_line(f"next        dynbench report {outcome.cells[0].comparison}")


def _cells(label: str, found: Mapping[str, object]) -> tuple[str, ...]:
    from dynbench.experiment.formats import interval, percent, speedup

    predicted = found.get("predicted_speedup")
    return (
        label,
        str(found.get("candidate")),
        str(found.get("verdict")),
        speedup(found) or "",
        interval(found) or "",
        f"{predicted:.3f}" if isinstance(predicted, int | float) else "",
        *(percent(value) or "" if isinstance(value := found.get(key), int | float) else "" for key in SHARES),
    )
