"""What each arm's ranks sent and how long that took, by operation, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.tables import format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

TITLE = "communication per rank and step, by operation"
HEADINGS: Mapping[str, tuple[str, str]] = {
    "calls": ("calls", ""),
    "ms": ("under way", "ms"),
    "wait_ms": ("waiting", "ms"),
    "transfer_ms": ("transfer", "ms"),
    "bytes": ("sent", "bytes"),
    "gb_per_s": ("speed", "GB/s"),
}
"""Key of a column to its heading, in English, and its unit."""

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def operations_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm, side and operation, means over the arm's launches; None where no arm knows.

    Args:
        launches: the arms.
        label: texts of a language.
    """
    rows = [
        [name, label(f"operations.{side}", side), operation, *(_cell(found, key) for key in HEADINGS)]
        for name, summaries in launches.items()
        for (side, operation), found in _by_operation(summaries).items()
    ]
    if not rows:
        return None
    headings = [
        label("headings.arm", "arm"),
        label("operations.side", "ranks"),
        label("operations.operation", "operation"),
        *(_heading(key, label) for key in HEADINGS),
    ]
    return Table(headings, rows, label("operations.title", TITLE), width=MARKDOWN_WIDTH, keys=3)


def _by_operation(summaries: Sequence[Mapping[str, object]]) -> dict[tuple[str, str], list[Mapping[str, object]]]:
    """Side and operation to what each launch says of it, in the order of the first that names it."""
    found: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for summary in summaries:
        told = summary.get("by_operation")
        for row in told if isinstance(told, list) else ():
            found.setdefault((str(row["side"]), str(row["operation"])), []).append(row)
    return found


def _cell(found: Sequence[Mapping[str, object]], key: str) -> str:
    numbers = [float(value) for row in found if isinstance(value := row.get(key), int | float)]
    return format_value(fmean(numbers), HEADINGS[key][1]) if len(numbers) == len(found) else ""


def _heading(key: str, label: Label) -> str:
    text, unit = HEADINGS[key]
    said = label(f"operations.{key}", text)
    return f"{said}\n({label(f'units.{unit}', unit)})" if unit else said
