"""What ranks held of the model in their first step, by kind, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbench.analysis.measure import lookup, mean_of_all
from dynbench.analysis.memory import MOMENTS
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.tables import format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

KINDS: Mapping[str, str] = {
    "parameters_mb": "parameters",
    "gradients_mb": "gradients",
    "optimizer_mb": "optimizer",
    "strategy_mb": "strategy",
    "peak_mb": "peak",
}
"""Key of what is counted at a moment to its heading, in English."""
TITLE = "held by a rank that trains in its first step, MB"

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def memory_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm and moment, means over launches; None where nothing was counted."""
    rows = []
    for name, summaries in launches.items():
        for moment in MOMENTS:
            cells = [mean_of_all([lookup(one, f"memory_parts.{moment}.{kind}") for one in summaries]) for kind in KINDS]
            if cells[0] is None:
                continue
            last = moment == MOMENTS[-1]
            more = [
                mean_of_all([lookup(one, f"memory_parts.{key}") for one in summaries]) if shown else None
                for key, shown in (("activations_mb", moment == MOMENTS[1]), ("formula_mb", last))
            ]
            said = label(f"memory_parts.{moment}", moment.replace("_", " "))
            held = sum(cell for cell in cells[:-1] if cell is not None)
            numbers = [*cells[:-1], held, *more, cells[-1]]
            rows.append([name, said, *(format_value(number, "MB") for number in numbers)])
    if not rows:
        return None
    keys = [*list(KINDS)[:-1], "held", "activations", "formula", "peak_mb"]
    headings = [label(f"memory_parts.{key}", KINDS.get(key, key)) for key in keys]
    columns = [label("headings.arm", "arm"), label("memory_parts.moment", "moment"), *headings]
    return Table(columns, rows, label("memory_parts.title", TITLE), width=MARKDOWN_WIDTH, keys=2)
