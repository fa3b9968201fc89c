"""How the arms scale, as a table for people, and the mark of ranks that share cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbench.analysis.crowding import MARK
from dynbench.analysis.overview import Label, in_english
from dynbench.analysis.record import ScalingRecord
from dynbench.analysis.tables import format_interval, format_ratio, format_value
from dynbench.table_text import MARKDOWN_WIDTH, Table

TITLE = "how each strategy scales with the ranks that train"
KINDS = {"reference": "reference", "strong": "strong", "weak": "weak"}
COLUMNS: Mapping[str, tuple[str, str, str]] = {
    "units_per_s": ("units_per_s", "work per s", ""),
    "step_ms": ("step_ms", "step", "ms"),
    "comm_ms": ("comm_ms", "communication", "ms"),
    "exposed_comm_ms": ("exposed_comm_ms", "exposed", "ms"),
    "comm_share": ("comm_share", "communication / step", "%"),
    "gb_per_s": ("gb_per_s", "effective bandwidth", "GB/s"),
}
"""Field of a record to its text's key, its heading in English, and its unit."""


def ranks_text(workers: int, world_size: int, oversubscribed: bool | None, label: Label = in_english) -> str:
    """`2`, `2 of 3` where some serve, marked where they share cores: `4 (oversubscribed)`."""
    counted = f"{workers}" if workers == world_size else label("scaling.of", "{} of {}").format(workers, world_size)
    return f"{counted} ({label('scaling.oversubscribed', MARK)})" if oversubscribed else counted


def scaling_table(records: Sequence[ScalingRecord], label: Label = in_english) -> Table | None:
    """A row per arm, strategy by strategy; None where all arms have as many workers.

    Args:
        records: of an analysis.
        label: texts of a language.
    """
    if not records:
        return None
    serve = any(one.world_size != one.workers for one in records)
    headings = [
        label("headings.arm", "arm"),
        label("scaling.ranks", "ranks that train"),
        *(label(f"scaling.{key}", text) for key, text in (("strategy", "strategy"), ("kind", "scaled"))),
        label("scaling.batch", "global batch"),
        label("headings.speedup", "speed-up"),
        label("scaling.interval", "interval of the pair alone"),
        label("scaling.efficiency", "efficiency"),
        *([label("scaling.efficiency_of_ranks", "of all ranks")] if serve else []),
        *(_heading(*said, label) for said in COLUMNS.values()),
    ]
    rows = [
        [
            one.arm,
            ranks_text(one.workers, one.world_size, one.oversubscribed, label),
            one.strategy,
            label(f"scaling.kinds.{one.kind}", KINDS[one.kind]),
            f"{one.global_batch:,}",
            format_ratio(one.speedup),
            format_interval(one.ci95),
            format_value(one.efficiency, "%"),
            *([format_value(one.efficiency_of_ranks, "%")] if serve else []),
            *(format_value(getattr(one, field), unit) for field, (_, _, unit) in COLUMNS.items()),
        ]
        for one in records
    ]
    return Table(headings, rows, label("scaling.title", TITLE), width=MARKDOWN_WIDTH, keys=2)


def _heading(key: str, text: str, unit: str, label: Label) -> str:
    said = label(f"scaling.{key}", text)
    return f"{said}\n({label(f'units.{unit}', unit)})" if unit not in ("", "%") else said
