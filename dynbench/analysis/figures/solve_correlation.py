"""Whether neighbouring steps have like lengths: a policy that sorts the data shows up here."""

from __future__ import annotations

from dynbench.analysis.figures import style
from dynbench.analysis.figures.solve_lines import describe, policy_rows, solve_lines
from dynbench.runs.run import Run


def draw(source: Run) -> style.Drawing | None:
    """Correlation of the mean lengths of adjacent global batches, at every world size."""
    table = solve_lines(source)
    if table is None or table["adjacent_length_correlation"].is_null().all():
        return None
    fewest = int(str(table["steps"].min()))
    chance = 2 / max(fewest - 1, 1) ** 0.5
    figure, panels = policy_rows(
        "Correlation of adjacent batches' mean lengths",
        f"{describe(source, table)} Within the grey band (two standard errors of {fewest} random steps) there is none. "
        "Sorted data makes it large, and the loss saw-toothed.",
        table,
        "adjacent_length_correlation",
        "correlation",
    )
    for axes in panels:
        axes.axvspan(-chance, chance, color=style.FAINT_INK, alpha=0.12, linewidth=0)
        axes.set_xlim(-1.05, 1.05)
    columns = ("trace", "world_size", "label", "adjacent_length_correlation", "step_length_spread")
    return style.Drawing(figure, table.select(columns))
