"""Padding ratio per policy: what is computed over what is needed."""

from __future__ import annotations

from dynbench.analysis.figures import style
from dynbench.analysis.figures.solve_lines import describe, policy_rows, solve_lines
from dynbench.runs.run import Run


def draw(source: Run) -> style.Drawing | None:
    """Padded over real tokens, at every world size."""
    table = solve_lines(source)
    if table is None:
        return None
    figure, panels = policy_rows(
        "Padding ratio",
        f"{describe(source, table)} Padded tokens over real tokens, all ranks and steps together; 1 is none. Little "
        "padding is not a fast step: that is decided by the slowest rank.",
        table,
        "padding_ratio",
        "padded / real tokens",
    )
    for axes in panels:
        axes.axvline(1, color=style.FAINT_INK, linewidth=1)
    return style.Drawing(figure, table.select("trace", "world_size", "label", "padding_ratio"))
