"""The lines of a `solve` run as a table, how policies look in every figure of it, and the figures with a row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.figures import style
from dynbench.errors import RecordError
from dynbench.runs.json_record import read_json
from dynbench.runs.run import Run

KEYS = ("trace", "world_size", "global_batch", "steps", "policy", "window", "mean_max_cost", "mean_bound")
MEASURES = ("speedup_vs_static", "padding_ratio", "adjacent_length_correlation", "step_length_spread")
LINE = ("trace", "world_size", "label")
"""Columns that say which line a row is."""


@dataclass
class _Results:
    results: list[dict[str, Any]]


def solve_lines(source: Run) -> pl.DataFrame | None:
    """One row per line of results, with the policy's label and its place in the legend; None without results.

    Raises:
        RecordError: results.json cannot be read.
    """
    results = read_json(source.path / "results.json", _Results, "Solve again.").results
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


def _policy_rows(
    source: Run, title: str, note: str, value: str, x_label: str, *, low: str = "", high: str = "", also: str = ""
) -> style.Drawing | None:
    """Policies from top to bottom, a mark per world size, a panel per trace; None without results.

    Args:
        source: the run.
        title: of the figure.
        note: in its caption.
        value: column of `solve_lines`, of the marks.
        x_label: what it is, with its unit.
        low: column of the range drawn behind each mark, its lower end.
        high: the same, its upper end.
        also: column that stands beside them in the figure's table.
    """
    table = solve_lines(source)
    if table is None or table[value].is_null().all():
        return None
    names = traces(table)
    labels = table["label"].unique(maintain_order=True).to_list()
    sizes: Sequence[int] = table["world_size"].unique(maintain_order=True).to_list()
    width_in, height_in = 2.2 + 2.6 * len(names), 1.9 + 0.34 * len(labels)
    caption = f"{describe(source, table)} {note}"
    figure, panels = style.new_figure(title, caption, columns=len(names), width_in=width_in, height_in=height_in)
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
    return style.Drawing(figure, table.select(*LINE, *filter(None, (low, value, high, also))))


def solve_padding(source: Run) -> style.Drawing | None:
    """Padded over real tokens per policy and world size: what is computed over what is needed."""
    drawing = _policy_rows(
        source,
        "Padding ratio",
        "Padded tokens over real tokens, all ranks and steps together; 1 is none. Little padding is not a fast step: "
        "that is decided by the slowest rank.",
        "padding_ratio",
        "padded / real tokens",
    )
    for axes in drawing.figure.axes if drawing else ():
        axes.axvline(1, color=style.FAINT_INK, linewidth=1)
    return drawing


def solve_batch_size(source: Run) -> style.Drawing | None:
    """Samples per rank and step, how uneven the counts become: median and range, at every world size."""
    drawing = _policy_rows(
        source,
        "Samples per rank and step",
        "Mark: median over ranks and steps; line: smallest to largest.",
        "samples_p50",
        "samples (log scale)",
        low="samples_min",
        high="samples_max",
    )
    for axes in drawing.figure.axes if drawing else ():
        axes.set_xscale("log", base=2)
    return drawing


def solve_correlation(source: Run) -> style.Drawing | None:
    """Correlation of adjacent batches' mean lengths: a policy that sorts the data shows up here."""
    table = solve_lines(source)
    fewest = 0 if table is None else int(str(table["steps"].min()))
    chance = 2 / max(fewest - 1, 1) ** 0.5
    drawing = _policy_rows(
        source,
        "Correlation of adjacent batches' mean lengths",
        f"Within the grey band (two standard errors of {fewest} random steps) there is none. Sorted data makes it "
        "large, and the loss saw-toothed.",
        "adjacent_length_correlation",
        "correlation",
        also="step_length_spread",
    )
    for axes in drawing.figure.axes if drawing else ():
        axes.axvspan(-chance, chance, color=style.FAINT_INK, alpha=0.12, linewidth=0)
        axes.set_xlim(-1.05, 1.05)
    return drawing
