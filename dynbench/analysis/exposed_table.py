"""Communication that no computing hides, told two ways side by side, with what communication there was in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dynbench.analysis.metrics import lookup
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.stats import mean_interval
from dynbench.analysis.tables import format_interval, format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

TITLE = "exposed communication told two ways, per step"
TWO_WAYS: Mapping[str, str] = {
    "exposed_comm_ms.mean": "after the last gradient",
    "exposed_vs_null_ms.mean": "beyond a step without",
}
"""Keys of the two, each with an interval beside it."""
BESIDE: Mapping[str, tuple[str, str]] = {
    "comm_ms.mean": ("union", "ms"),
    "comm_sum_ms.mean": ("sum", "ms"),
    "overlap_fraction": ("hidden", "%"),
    "comm_wait_ms.mean": ("waiting", "ms"),
    "comm_transfer_ms.mean": ("transfer", "ms"),
    "collectives.mean": ("collectives", ""),
    "bytes_wire.mean": ("sent", "bytes"),
}
"""Key of a column to its heading, in English, and its unit."""

Launches = Mapping[str, Sequence[Mapping[str, object]]]
"""Name of the arm to the summaries of its launches."""


def two_ways_apart(summaries: Sequence[Mapping[str, object]]) -> float | None:
    """By which part of the larger the two means differ; None where one is not known."""
    own, beyond = (fmean(values) if (values := known(summaries, key)) else None for key in TWO_WAYS)
    return None if own is None or beyond is None or max(own, beyond) <= 0 else (beyond - own) / max(own, beyond)


def exposed_table(launches: Launches, label: Label = in_english) -> Table | None:
    """A row per arm, means over its launches with t intervals; None where none took turns with one that sends nothing.

    Args:
        launches: the arms.
        label: texts of a language.
    """
    if not any(known(summaries, "exposed_vs_null_ms.mean") for summaries in launches.values()):
        return None
    rows = []
    for name, summaries in launches.items():
        cells = [name]
        for key in TWO_WAYS:
            values = known(summaries, key)
            low_high = mean_interval(values)[1:] if len(values) > 1 else None
            cells += [format_value(fmean(values), "ms") if values else "", format_interval(low_high)]
        cells.append(format_value(two_ways_apart(summaries), "%"))
        for key, (_, unit) in BESIDE.items():
            values = known(summaries, key)
            cells.append(format_value(fmean(values), unit) if values else "")
        rows.append(cells)
    ms, interval = f"({label('units.ms', 'ms')})", label("exposed_table.interval", "95 % interval")
    columns = [label("headings.arm", "arm")]
    for key, text in TWO_WAYS.items():
        columns += [f"{label(f'exposed_table.{key}', text)}\n{ms}", interval]
    columns.append(label("exposed_table.apart", "apart"))
    for key, (text, unit) in BESIDE.items():
        said = label(f"exposed_table.{key}", text)
        columns.append(f"{said}\n({label(f'units.{unit}', unit)})" if unit not in ("", "%") else said)
    title = label("exposed_table.title", TITLE)
    return Table(columns, rows, title, beside=(2, 4), width=MARKDOWN_WIDTH)


def known(summaries: Sequence[Mapping[str, object]], key: str) -> list[float]:
    """The launches' numbers of a key, of those that have one."""
    return [value for summary in summaries if (value := lookup(summary, key)) is not None]
