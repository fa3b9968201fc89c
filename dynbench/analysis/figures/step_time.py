"""How long a step lasts, over the training: the maximum over ranks, which is when a synchronous step ends."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.analysis.figures import style
from dynbench.analysis.figures.over_steps import draw_lines, smoothing_note
from dynbench.analysis.figures.views import ArmView, caption, drawable


def draw(arms: Sequence[ArmView]) -> style.Drawing | None:
    """One line per arm over the measured steps."""
    arms = drawable(arms)
    if not arms:
        return None
    figure, (axes,) = style.new_figure("Step time: the slowest rank of each step", caption(arms, smoothing_note(arms)))
    table = draw_lines(axes, arms, "step_time_max_ms")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("step time, maximum over ranks (ms)")
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table)
