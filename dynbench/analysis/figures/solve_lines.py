"""The lines of a `solve` run as a table, and how policies look in every figure of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynbench.analysis.figures import style
from dynbench.errors import RecordError
from dynbench.runs.run import Run

KEYS = ("trace", "world_size", "global_batch", "steps", "policy", "window", "mean_max_cost", "mean_bound")
MEASURES = ("speedup_vs_static", "padding_ratio", "adjacent_length_correlation", "step_length_spread")


def solve_lines(source: Run) -> pl.DataFrame | None:
    """One row per line of results, with the policy's label and its place in the legend; None without results.

    Raises:
        RecordError: results.json cannot be read.
    """
    path = source.path / "results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"{path}: cannot be read ({error})", "Solve again.") from error
    if not results:
        return None
    rows = [
        {key: result[key] for key in (*KEYS, *MEASURES)}
        | {f"samples_{key}": float(result["local_batch"][key]) for key in ("min", "p50", "max")}
        | {"label": policy_label(result["policy"], result["window"]), "plan_ms": float(result["plan_ms"]["p50"])}
        for result in results
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col(MEASURES).cast(pl.Float64))
    labels = frame["label"].unique(maintain_order=True)
    return frame.with_columns(index=pl.col("label").replace_strict(labels, range(len(labels)), return_dtype=pl.Int64))


def read_rows(source: Run, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """The named columns of a CSV file in the run folder.

    Raises:
        RecordError: the file cannot be read, or a column is missing.
    """
    path = source.path / name
    try:
        return pl.read_csv(path, columns=list(columns), schema_overrides={"variance_gap": pl.Float64})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RecordError(f"{path}: cannot be read ({str(error).splitlines()[0]})", "Solve again.") from error


def policy_label(policy: str, window: int) -> str:
    """A policy with its window where it plans several batches together."""
    return f"{policy} W={window}" if window > 1 else policy


def traces(table: pl.DataFrame) -> list[str]:
    """Names of the traces, in the order in which they were solved; one panel each."""
    return table["trace"].unique(maintain_order=True).to_list()


def describe(source: Run, table: pl.DataFrame) -> str:
    """Opening of a caption: the run and how many steps it planned."""
    fewest, most = (int(str(end)) for end in (table["steps"].min(), table["steps"].max()))
    return f"{source.label}: {fewest if fewest == most else f'{fewest} to {most}'} planned steps per line."


def line_look(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a policy; more policies than colours stay apart."""
    return {"color": style.color(index), "marker": style.marker(index), "linestyle": style.dashes(index)}


def policy_rows(
    title: str, caption: str, table: pl.DataFrame, value: str, x_label: str, *, low: str = "", high: str = ""
) -> tuple[Figure, list[Axes]]:
    """Policies from top to bottom, a mark per world size, a panel per trace.

    Args:
        title: of the figure.
        caption: of the figure.
        table: as `solve_lines` gives it.
        value: column of the marks.
        x_label: what it is, with its unit.
        low: column of the range drawn behind each mark, its lower end.
        high: the same, its upper end.
    """
    names = traces(table)
    labels = table["label"].unique(maintain_order=True).to_list()
    sizes: Sequence[int] = table["world_size"].unique(maintain_order=True).to_list()
    figure, panels = style.new_figure(
        title, caption, columns=len(names), width_in=2.2 + 2.6 * len(names), height_in=1.9 + 0.34 * len(labels)
    )
    offsets = np.linspace(-0.24, 0.24, len(sizes)) if len(sizes) > 1 else np.zeros(1)
    for axes, name in zip(panels, names, strict=True):
        for order, size in enumerate(sizes):
            part = table.filter(trace=name, world_size=size).drop_nulls(value)
            at = part["index"].to_numpy() + offsets[order]
            if low and high:
                axes.hlines(at, part[low], part[high], color=style.color(order), linewidth=2.2, alpha=0.45)
            axes.plot(
                part[value], at, style.marker(order), color=style.color(order), markersize=5, label=f"{size} ranks"
            )
        axes.set_yticks(range(len(labels)), labels if axes is panels[0] else [""] * len(labels))
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.grid(axis="x")
        style.label_axes(axes, x_label, "", title=name, from_zero=False)
    style.legend_of_figure(figure, panels[0])
    return figure, panels
