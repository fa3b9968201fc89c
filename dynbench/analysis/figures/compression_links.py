"""How long steps would last over links of other speeds, by compressor, and where one takes as long as the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.compression import compared, plain_ticks
from dynbench.analysis.figures.views import ArmView, caption
from dynbench.analysis.link_model import SPEEDS_GBPS, predicted_ms
from dynbench.analysis.links import faster_gbps
from dynbench.analysis.measures import communication_of
from dynbench.analysis.merge import MergedRun

SLOWEST_GBPS = 0.1
POINTS = 60


def compression_links(arms: Sequence[ArmView]) -> style.Drawing | None:
    """A line per arm from slow links to fast ones, as `links.predicted_ms` has it; no arm that lacks a number of it."""
    shown = compared(arms)
    launches = {arm.label: [_summary(run) for run in arm.runs] for arm in shown}
    known = {label: each for label, each in launches.items() if predicted_ms(each, 1) is not None}
    if not known:
        return None
    baseline = next(iter(launches))
    speeds = np.geomspace(SLOWEST_GBPS, max(SPEEDS_GBPS), POINTS).tolist()
    ends = {
        label: [end for span in faster_gbps(each, launches[baseline]) or () for end in span if end]
        if len(known) > 1
        else []
        for label, each in known.items()
    }
    drawn = {label: [end for end in each if SLOWEST_GBPS <= end <= speeds[-1]] for label, each in ends.items()}
    note = "Predicted from measured steps and counted bytes: what was hidden stays hidden, what is slower is exposed."
    rings = f" Rings: as long as {baseline}." if any(drawn.values()) else ""
    figure, (axes,) = style.new_figure(
        "Steps over links of other speeds", caption(shown, note + rings), width_in=9, height_in=5.5
    )
    rows = []
    for index, (label, summaries) in enumerate(known.items()):
        along = sorted([*speeds, *drawn[label]])
        ms = {speed: predicted_ms(summaries, speed) or 0.0 for speed in along}
        axes.plot(
            speeds,
            [ms[speed] for speed in speeds],
            color=style.color(index),
            linestyle=style.dashes(index),
            marker=style.marker(index),
            markevery=(index % 8, 12),
            markersize=4,
            linewidth=1.2,
            label=label,
        )
        ring = {"linestyle": "none", "marker": "o", "markersize": 9, "markerfacecolor": "none"}
        axes.plot(drawn[label], [ms[end] for end in drawn[label]], color=style.color(index), **ring)  # type: ignore[arg-type]
        rows += [
            {"arm": label, "gbps": speed, "predicted_ms": ms[speed], "crosses": speed in drawn[label]}
            for speed in along
        ]
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis, axes.yaxis)
    style.label_axes(axes, "speed of the link (Gb/s)", "predicted step time (ms)", from_zero=False)
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, pl.DataFrame(rows))


def _summary(run: MergedRun) -> dict[str, object]:
    """What a prediction reads of a run's summary."""
    return {**communication_of(run), "step_time_ms": {"mean": fmean(run.measured["step_time_max_ms"])}}
