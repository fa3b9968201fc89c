"""Plans: how near heuristic counts come to the exact ones, and where scheduling pays."""

from __future__ import annotations

from typing import Any

import polars as pl
import polars.selectors as cs

from dynbench.analysis.figures.charts import DASHES, INK, Drawing, Lines, draw_panels, figure, handles, looks
from dynbench.analysis.measures import workers_of
from dynbench.analysis.record import COMPARISON_FILE, read_analysis, read_cells
from dynbench.errors import RecordError
from dynbench.runs.run import Run

GAPS = "greedy_gaps.csv"
GAP_COLUMNS = ("trace", "world_size", "step", "heuristic", "max_cost_gap", "variance_gap")
MARKERS = {"real": "o", "virtual": "s"}
"""Kind of the ranks to the marker."""


def _gaps(source: Run) -> pl.DataFrame | None:
    """Of the smallest and the largest number of ranks."""
    path = source.path / GAPS
    if not path.is_file():
        return None
    try:
        table = pl.read_csv(path, columns=list(GAP_COLUMNS), schema_overrides={"variance_gap": pl.Float64})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RecordError(f"{path}: cannot be read ({str(error).splitlines()[0]})", "Solve again.") from error
    size = pl.col("world_size")
    return table.filter((size == size.min()) | (size == size.max()))


@figure("solve", _gaps)
def solve_greedy_gap(table: pl.DataFrame) -> Drawing:
    """How far greedy and equal counts are from the exact counts, on the buffers that `prefix` met.

    Above: excess of the maximum, per heuristic; below: greedy's excess of the variance.
    """
    sizes, of = sorted(set(table["world_size"])), ("trace", "heuristic", "world_size", "gap")
    ranks = pl.format("{}, {} ranks", "heuristic", "world_size")
    drawn = (
        table.unpivot(GAP_COLUMNS[-2:], index=of[:3], variable_name="gap", value_name="x")
        .filter(pl.col("x").is_not_null() & ((pl.col("gap") == "max_cost_gap") | (pl.col("heuristic") == "greedy")))
        .sort("x")
        .with_columns(pl.col("x") * 100, series=ranks, share=(pl.int_range(1, pl.len() + 1) / pl.len()).over(of))
    )
    shown = {
        f"{heuristic}, {size} ranks": look._replace(marker="None", dashes=dashes)
        for heuristic, look in looks(table["heuristic"].unique(maintain_order=True).to_list()).items()
        for size, dashes in zip(sizes, DASHES, strict=False)
    }
    traces = table["trace"].unique(maintain_order=True).to_list()
    panels = [
        Lines(rows=rows, x="x", y="share", x_label=label, y_label="share of steps", title=trace, stairs=True)
        for gap, label in (
            ("max_cost_gap", "gap of the maximum (%)"),
            ("variance_gap", "greedy's gap of the variance (%)"),
        )
        for trace in traces
        if (rows := drawn.filter(gap=gap, trace=trace)).height
    ]
    note = (
        f"Share of steps whose gap is at most x, from {table['step'].n_unique()} steps each. Maximum: relative to the "
        "exact one; greedy's gap is provably zero. Variance: in units of the squared maximum, where the exact variance "
        "is known. Smallest and largest world size."
    )
    title = "prefix: gap of heuristic counts to the exact ones"
    layout: dict[str, Any] = {"width_in": max(8.0, 2 + 2.9 * len(traces)), "panel_in": 2.5, "legend": handles(shown)}
    return draw_panels(title, note, table, panels, shown, series="series", columns=len(traces), **layout)


def _speedups(source: Run) -> pl.DataFrame | None:
    """A row per comparison that has ended and candidate of which a speed-up and the overhead are known."""
    rows: list[dict[str, object]] = []
    for cell in read_cells(source.path).cells:
        folder = source.path.parent / cell.comparison
        if not (folder / COMPARISON_FILE).is_file():
            continue
        record = read_analysis(folder)
        for found in record.comparisons:
            summary, (low, high) = record.runs[0].summary, found.interval or (None, None)
            rows.append(
                {
                    "cell": cell.label,
                    "candidate": found.candidate,
                    "launcher": summary.get("launcher"),
                    "world_size": workers_of(summary),
                    "global_batch": summary.get("global_batch"),
                    "overhead_share": found.overhead_share,
                    "speedup": found.speedup,
                    "low": low,
                    "high": high,
                    "predicted_speedup": found.predicted_speedup,
                    "bound_speedup": found.bound_speedup,
                }
            )
    known = [row for row in rows if row["overhead_share"] is not None]
    return pl.DataFrame(known, infer_schema_length=None).cast({cs.by_dtype(pl.Null): pl.Float64}) if known else None


@figure("cells", _speedups)
def regimes(table: pl.DataFrame) -> Drawing:
    """Speed-ups over the part of a step that is launch overhead, with their intervals and what the probe predicted."""
    kind = pl.when(pl.col("launcher") == "virtual").then(pl.lit("virtual")).otherwise(pl.lit("real"))
    first, name = pl.col("candidate") == table["candidate"][0], pl.format("G={}, B={}", "world_size", "global_batch")
    drawn = table.with_columns(series=pl.format("{}, {} ranks", "candidate", kind), name=pl.when(first).then(name))
    known = set(drawn["series"])
    shown = {
        series: look._replace(marker=marker, dashes="")
        for candidate, look in looks(table["candidate"].unique(maintain_order=True).to_list()).items()
        for kind_, marker in MARKERS.items()
        if (series := f"{candidate}, {kind_} ranks") in known
    }
    panel = Lines(
        rows=drawn, x="overhead_share", y="speedup", bars=("low", "high"), y_label="speed-up over the baseline",
        x_label="launch overhead, share of the slowest rank's compute", names="name",
    )  # fmt: skip
    note = (
        f"n = {table['cell'].n_unique()} comparisons. Overhead: what of the slowest rank's compute does not "
        "grow with its tokens, fitted to the baseline's rows. Filled: measured, with the interval; hollow: predicted "
        "by the probe. G: ranks, B: global batch. Above the line at 1 scheduling pays."
    )
    title = "Speed-up by share of launch overhead"
    drawing = draw_panels(title, note, table, [panel], shown, series="series", panel_in=4, legend=handles(shown))
    (axes,) = drawing.figure.axes
    for row in drawn.drop_nulls("predicted_speedup").iter_rows(named=True):
        look = shown[row["series"]]
        axes.plot(row["overhead_share"], row["predicted_speedup"], look.marker, fillstyle="none", color=look.color)
    axes.axhline(1, color=INK, linewidth=1)
    return drawing
