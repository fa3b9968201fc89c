"""How far training has come, by compressor: over steps, over time, and over what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.compression import UNKNOWN, compared, perplexity_or_loss, plain_ticks, worker_rows
from dynbench.analysis.figures.views import ArmView, caption
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.targets import reached
from dynbench.units import mb


def compression_progress(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Evaluations against the time of the steps before them, and against what a rank had sent by then."""
    arms = compared(arms)
    measure = perplexity_or_loss(arms)
    tables = {arm.label: _over_launches([reached(run, measure) for run in arm.runs], "steps") for arm in arms}
    if not arms or all(table.is_empty() for table in tables.values()):
        return None
    note = "Means over launches. Time of the steps, warm-up among them; evaluation is off this clock."
    figure, (left, right) = style.new_figure(
        "Evaluations over time and over what was sent", caption(arms, note), columns=2, width_in=10, share_y=True
    )
    for index, table in enumerate(tables.values()):
        for axes, column in ((left, "time_s"), (right, "bytes")):
            _line(
                axes, _scaled(table[column], column), table[measure].to_list(), index, list(tables)[index], marked=True
            )
    style.label_axes(left, "time of the steps (s)", f"evaluation {measure}", from_zero=False)
    right.set_xlabel("sent by a rank (MB)")
    right.set_xscale("log")
    left.set_yscale("log")
    plain_ticks(left.yaxis, right.xaxis)
    style.legend_of_figure(figure, left)
    return style.Drawing(figure, _stacked(tables))


def compression_curves(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Training loss, evaluation loss and the norm of what was left out, over the steps."""
    arms = compared(arms)
    if not arms:
        return None
    window = style.smoothing_window(max(arm.steps.height for arm in arms))
    smoothed = f"Means over launches; training loss: rolling mean over {window} steps."
    figure, panels = style.new_figure(
        "Losses, and what has not been sent yet",
        caption(
            arms, smoothed, "Residual: of all that was left out so far, where it was measured (compress.error_every)."
        ),
        columns=3,
        width_in=11,
    )
    tables = []
    for index, arm in enumerate(arms):
        step, loss = arm.steps["step"].to_list(), arm.steps["loss_global"].to_numpy()
        losses = list(style.smooth(loss, window))
        evaluations = _over_launches(
            [run.evaluations.select("step", "loss") for run in arm.runs if run.evaluations.height]
        )
        residual = _over_launches([_residual(run) for run in arm.runs])
        for panel, name, x, y in (
            (panels[0], "training loss", step, losses),
            (panels[1], "evaluation loss", *_columns(evaluations, "loss")),
            (panels[2], "residual norm", *_columns(residual, "residual_norm")),
        ):
            if x or panel is not panels[2]:
                _line(panel, x, y, index, arm.label, marked=panel is not panels[0])
            tables.append(pl.DataFrame({"arm": arm.label, "quantity": name, "step": x, "value": y}, strict=False))
    for panel, title in zip(panels, ("training loss", "evaluation loss", "2-norm of the residual"), strict=True):
        style.label_axes(panel, "optimizer step", title, from_zero=False)
    if not panels[2].has_data():
        panels[2].text(0.5, 0.5, UNKNOWN, ha="center", va="center", transform=panels[2].transAxes)
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, pl.concat(tables, how="vertical_relaxed"))


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], index: int, label: str, *, marked: bool) -> None:
    look: dict[str, Any] = {
        "color": style.color(index),
        "linestyle": style.dashes(index),
        "linewidth": 1.2,
        "markersize": 4,
    }
    axes.plot(x, y, label=label, marker=style.marker(index) if marked else None, **look)


def _scaled(values: pl.Series, column: str) -> list[float]:
    return (values * mb(1) if column == "bytes" else values).to_list()


def _columns(table: pl.DataFrame, value: str) -> tuple[list[float], list[float]]:
    return (table["step"].to_list(), table[value].to_list()) if table.height else ([], [])


def _residual(run: MergedRun) -> pl.DataFrame:
    return worker_rows(run, "residual_norm").group_by("step").mean()


def _over_launches(tables: Sequence[pl.DataFrame], by: str = "step") -> pl.DataFrame:
    """Means over launches of what they have of a step."""
    found = [table.cast(pl.Float64, strict=False) for table in tables if table.height]
    return pl.concat(found).group_by(by).mean().sort(by) if found else pl.DataFrame()


def _stacked(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([table.with_columns(arm=pl.lit(arm)) for arm, table in tables.items() if table.height])
