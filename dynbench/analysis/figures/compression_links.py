"""How long steps would last over links of other speeds, by compressor."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import polars as pl

from dynbench.analysis.communication import communication_of
from dynbench.analysis.figures import style
from dynbench.analysis.figures.compression import compared, plain_ticks
from dynbench.analysis.figures.views import ArmView, caption
from dynbench.analysis.links import SPEEDS_GBPS, predicted_ms
from dynbench.analysis.merge import MergedRun

SLOWEST_GBPS = 0.1
POINTS = 60


def compression_links(arms: Sequence[ArmView]) -> style.Drawing | None:
    """A line per arm from slow links to fast ones, as `links.predicted_ms` has it; no arm that lacks a number of it."""
    shown, lines = compared(arms), {}
    speeds = np.geomspace(SLOWEST_GBPS, max(SPEEDS_GBPS), POINTS).tolist()
    for arm in shown:
        times = [[predicted_ms(_summary(run), speed) for run in arm.runs] for speed in speeds]
        known = [[ms for ms in each if ms is not None] for each in times]
        if all(len(each) == len(arm.runs) for each in known):
            lines[arm.label] = [fmean(each) for each in known]
    if not lines:
        return None
    note = "Predicted from measured steps and counted bytes: what was hidden stays hidden, what is slower is exposed."
    figure, (axes,) = style.new_figure(
        "Steps over links of other speeds", caption(shown, note), width_in=9, height_in=5.5
    )
    for index, (label, ms) in enumerate(lines.items()):
        axes.plot(
            speeds,
            ms,
            color=style.color(index),
            linestyle=style.dashes(index),
            marker=style.marker(index),
            markevery=(index % 8, 12),
            markersize=4,
            linewidth=1.2,
            label=label,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis, axes.yaxis)
    style.label_axes(axes, "speed of the link (Gb/s)", "predicted step time (ms)", from_zero=False)
    style.legend_of_figure(figure, axes)
    rows = [
        {"arm": label, "gbps": speed, "predicted_ms": value}
        for label, ms in lines.items()
        for speed, value in zip(speeds, ms, strict=True)
    ]
    return style.Drawing(figure, pl.DataFrame(rows))


def _summary(run: MergedRun) -> dict[str, object]:
    """What a prediction reads of a run's summary."""
    return {**communication_of(run), "step_time_ms": {"mean": fmean(run.measured["step_time_max_ms"])}}
