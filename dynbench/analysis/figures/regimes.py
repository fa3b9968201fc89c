"""Where scheduling pays: speed-up over the part of a step that is launch overhead, one mark per comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.metrics import workers_of
from dynbench.analysis.record import COMPARISON_FILE, read_analysis
from dynbench.runs.json_record import read_json
from dynbench.runs.run import Run

CELLS_FILE = "cells.json"
"""In the folder of several comparisons: `cells`, each with its settings and the id of its comparison."""

LAUNCHERS = ("torchrun", "virtual")
LABEL_OFFSETS = ((8, -12), (8, 4))
"""Where a mark's label stands, points right of it and above it, by launcher: real and virtual cells often coincide."""
COLUMNS = {
    "cell": pl.String,
    "candidate": pl.String,
    "launcher": pl.String,
    "world_size": pl.Int64,
    "global_batch": pl.Int64,
    "overhead_share": pl.Float64,
    "speedup": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "predicted_speedup": pl.Float64,
    "bound_speedup": pl.Float64,
}


def regimes(source: Run) -> style.Drawing | None:
    """Measured speed-ups with their intervals, what the probe predicted, and the break-even line."""
    table = pl.DataFrame(list(_rows(source)), schema=COLUMNS, orient="row").drop_nulls(("overhead_share", "speedup"))
    if not table.height:
        return None
    figure, (axes,) = style.new_figure(
        "Speed-up over the part of a step that is launch overhead",
        f"{source.label}: n = {table['cell'].n_unique()} comparisons. Overhead is the part of the slowest rank's "
        "compute that does not grow with its tokens, fitted to the baseline's rows. Filled: measured, with the "
        "interval; hollow: predicted by the probe. G: ranks, B: global batch. Above the line at 1 scheduling pays.",
        height_in=5.2,
    )
    for index, candidate in enumerate(table["candidate"].unique(maintain_order=True)):
        for shape, launcher in enumerate(LAUNCHERS):
            part = table.filter(candidate=candidate, launcher=launcher)
            if not part.height:
                continue
            kind = "virtual" if launcher == "virtual" else "real"
            look: dict[str, Any] = {"color": style.color(index), "marker": style.marker(shape), "linestyle": ""}
            axes.vlines(part["overhead_share"], part["low"], part["high"], color=style.color(index), linewidth=1.4)
            axes.plot(part["overhead_share"], part["speedup"], label=f"{candidate}, {kind} ranks", markersize=6, **look)
            axes.plot(part["overhead_share"], part["predicted_speedup"], fillstyle="none", markersize=6, **look)
            if index == 0:
                _label(axes, part, LABEL_OFFSETS[shape])
    axes.axhline(1, color=style.INK, linewidth=1)
    axes.set_xlim(-0.03, min(1.03, 1.3 * max(0.3, *table["overhead_share"])))
    style.label_axes(axes, "launch overhead, part of the slowest rank's compute", "speed-up over the baseline")
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table)


def _label(axes: Axes, part: pl.DataFrame, offset: tuple[int, int]) -> None:
    """Ranks and global batch beside each mark, where the comparison says them."""
    for row in part.drop_nulls(("world_size", "global_batch")).iter_rows(named=True):
        axes.annotate(
            f"G={row['world_size']}, B={row['global_batch']}",
            (row["overhead_share"], row["speedup"]),
            textcoords="offset points",
            xytext=offset,
            fontsize=8,
            color=style.FAINT_INK,
        )


def _rows(source: Run) -> Iterator[dict[str, object]]:
    """One per comparison and candidate; comparisons that have not ended are left out."""
    for cell in read_json(source.path / CELLS_FILE, dict[str, Any], "Compare again.")["cells"]:
        folder = source.path.parent / str(cell["comparison"])
        if not (folder / COMPARISON_FILE).is_file():
            continue
        record = read_analysis(folder)
        summary = record.runs[0].summary
        for found in record.comparisons:
            low, high = found.interval or (None, None)
            yield {
                "cell": ", ".join(f"{key}={value}" for key, value in cell["settings"].items()),
                **{key: summary.get(key) for key in ("launcher", "global_batch")},
                "world_size": workers_of(summary),
                "candidate": found.candidate,
                "low": low,
                "high": high,
                **{key: getattr(found, key) for key in COLUMNS if key.endswith(("speedup", "share"))},
            }
