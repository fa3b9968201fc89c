"""How unequal the ranks are within a step: standard deviation over ranks of time, work and memory."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.over_steps import draw_lines, smoothing_note
from dynbench.analysis.figures.views import ArmView, caption, drawable

PANELS = (
    ("compute_ms", "compute time (ms)"),
    ("padded_tokens", "padded tokens"),
    ("peak_mem_mb", "peak memory (MB)"),
    ("step_time_ms", "step time (ms)"),
)

_NOTE = "Ranks of one process group end a step together, so step time spreads little however unequal the work is."


def draw(arms: Sequence[ArmView]) -> style.Drawing | None:
    """One panel per quantity, one line per arm."""
    arms = drawable(arms)
    if not arms or arms[0].runs[0].world_size < 2:
        return None
    note = "" if arms[0].runs[0].facts.virtual else _NOTE
    figure, panels = style.new_figure(
        "Spread over ranks within each step",
        caption(arms, "Standard deviation over ranks.", smoothing_note(arms), note),
        rows=2,
        columns=2,
        width_in=10,
        height_in=6.8,
        share_x=True,
    )
    tables = []
    for axes, (name, title) in zip(panels, PANELS, strict=True):
        drawn = draw_lines(axes, arms, f"{name}_std").rename({f"{name}_std": "std_over_ranks"})
        tables.append(drawn.with_columns(quantity=pl.lit(name)))
        axes.set_title(title)
        axes.set_ylabel("std over ranks")
    for axes in panels[2:]:
        axes.set_xlabel("optimizer step")
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, pl.concat(tables).select("quantity", "arm", "step", "std_over_ranks", "smoothed"))
