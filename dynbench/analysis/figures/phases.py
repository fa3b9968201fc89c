"""The parts of a step and their colours, the same in every figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a step.

    Attributes:
        column: in the merged rows; `<column>_mean` in the step table.
        title: in legends.
        color: of the bar.
        hatch: matplotlib hatch, so that waiting is told apart without colour.
    """

    column: str
    title: str
    color: str
    hatch: str = ""


PHASES: tuple[Phase, ...] = (
    Phase("plan_ms", "plan", "#000000"),
    Phase("data_ms", "data", "#E69F00"),
    Phase("compute_ms", "compute", "#0072B2"),
    Phase("wait_ms", "wait for the slowest rank", "#F4C7AE", "////"),
    Phase("exposed_comm_ms", "communication", "#CC79A7"),
    Phase("optimizer_ms", "optimizer", "#009E73"),
    Phase("other_ms", "other", "#BBBBBB"),
)
"""In the order in which they happen."""

WAIT_EDGE = "#D55E00"


def draw_bars(axes: Axes, rows: pl.DataFrame, height: float) -> None:
    """One horizontal bar per row, from zero, of the milliseconds of every phase; the first row on top."""
    left = np.zeros(rows.height)
    for phase in PHASES:
        ms = rows[phase.column].to_numpy().astype(np.float64)
        axes.barh(
            np.arange(rows.height),
            ms,
            left=left,
            height=height,
            color=phase.color,
            hatch=phase.hatch,
            edgecolor=WAIT_EDGE if phase.hatch else "none",
            linewidth=0,
            label=phase.title,
        )
        left = left + ms
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
