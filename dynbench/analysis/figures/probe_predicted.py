"""Predicted against measured step time, for the fit and on the points it had not seen."""

from __future__ import annotations

from dynbench.analysis.figures import style
from dynbench.analysis.figures.probe_points import measured_points
from dynbench.runs.run import Run


def draw(source: Run) -> style.Drawing | None:
    """Points on the diagonal are predicted right; held-out points stand out."""
    points = measured_points(source)
    if points is None:
        return None
    table, cost = points
    judged = cost.heldout.get("measured")
    accuracy = (
        ""
        if judged is None
        else f" On held-out points: mean error {judged.mape:.1%}, rank correlation {judged.rank_correlation:.3f}."
    )
    figure, (axes,) = style.new_figure(
        "Predicted against measured step time",
        f"{source.label}: n = {len(table)} shapes, median over ranks and repeats. The line shown is fitted to all "
        f"points; accuracy is judged on a second fit that leaves the held-out ones out.{accuracy}",
        width_in=6.4,
        height_in=5.6,
    )
    for index, (held_out, label) in enumerate(((False, "fitted"), (True, "held out"))):
        part = table.filter(held_out=held_out)
        axes.plot(
            part["measured_ms"],
            part["predicted_ms"],
            style.marker(index),
            color=style.color(index),
            label=label,
            markersize=6,
            alpha=0.85,
        )
    low, high = 0.8 * float(str(table["measured_ms"].min())), 1.25 * float(str(table["measured_ms"].max()))
    axes.plot([low, high], [low, high], color=style.FAINT_INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.label_axes(axes, "measured (ms, log scale)", "predicted (ms, log scale)", from_zero=False)
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table)
