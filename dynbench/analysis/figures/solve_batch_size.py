"""Samples per rank and step: how uneven the counts become."""

from __future__ import annotations

from dynbench.analysis.figures import style
from dynbench.analysis.figures.solve_lines import describe, policy_rows, solve_lines
from dynbench.runs.run import Run


def draw(source: Run) -> style.Drawing | None:
    """Median and range of the local batch, at every world size."""
    table = solve_lines(source)
    if table is None:
        return None
    figure, panels = policy_rows(
        "Samples per rank and step",
        f"{describe(source, table)} Mark: median over ranks and steps; line: smallest to largest.",
        table,
        "samples_p50",
        "samples (log scale)",
        low="samples_min",
        high="samples_max",
    )
    for axes in panels:
        axes.set_xscale("log", base=2)
    return style.Drawing(
        figure, table.select("trace", "world_size", "label", "samples_min", "samples_p50", "samples_max")
    )
