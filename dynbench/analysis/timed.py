"""What strategies and compressors time in a step, of the ranks that train and of those that serve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dynbench.analysis.communication import OF_EVERY_RUN
from dynbench.analysis.merge import SIDES
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.tables import format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

TITLE = "what is timed of communication, means over ranks and steps, ms"

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def timed_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm and side, means over launches.

    Args:
        launches: the arms.
        label: texts of a language.

    Returns:
        None where no strategy or compressor times anything of its own.
    """
    rows = [
        (name, side, means)
        for name, summaries in launches.items()
        for side in SIDES
        if (means := _means(summaries, side))
    ]
    columns = list(dict.fromkeys(column for *_, means in rows for column in means))
    if OF_EVERY_RUN.issuperset(columns):
        return None
    headings = [label(f"timed.{column}", column.removesuffix("_ms").replace("_", " ")) for column in columns]
    cells = [
        [f"{name}, {label(f'timed.{side}', side)}", *(format_value(means.get(column), "ms") for column in columns)]
        for name, side, means in rows
    ]
    return Table([label("headings.arm", "arm"), *headings], cells, label("timed.title", TITLE), width=MARKDOWN_WIDTH)


def _means(summaries: Sequence[Mapping[str, object]], side: str) -> dict[str, float]:
    """Of the launches that have a column, by column."""
    found: dict[str, list[float]] = {}
    for summary in summaries:
        timed = summary.get("timed_ms")
        times = timed.get(side) if isinstance(timed, Mapping) else None
        for name, value in (times or {}).items():
            found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}
