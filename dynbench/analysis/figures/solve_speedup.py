"""What each policy gives back against world size, the most that any could, and what planning it takes."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.solve_lines import describe, line_look, solve_lines, traces
from dynbench.runs.run import Run


def draw(source: Run) -> style.Drawing | None:
    """Above: speedup over static per policy with the proven bound; below, on the same axis: planning time per step."""
    table = solve_lines(source)
    if table is None or table["speedup_vs_static"].is_null().all():
        return None
    table = table.drop_nulls("speedup_vs_static").with_columns(
        bound_speedup=pl.col("speedup_vs_static") * pl.col("mean_max_cost") / pl.col("mean_bound")
    )
    names = traces(table)
    figure, panels = style.new_figure(
        "Predicted speedup over static, and planning time",
        f"{describe(source, table)} Ratio of summed maximum cost per real token. The bound is that of static's own "
        "batches: no way of dealing each of them anew is faster; policies that move samples between steps, or choose "
        "others, may pass it. Planning time is the median over steps, in one process.",
        rows=2,
        columns=len(names),
        width_in=2.0 + 3.2 * len(names),
        height_in=7.4,
    )
    above, below = panels[: len(names)], panels[len(names) :]
    for speed, planning, name in zip(above, below, names, strict=True):
        here = table.filter(trace=name)
        _lines(speed, here, "speedup_vs_static")
        bound = here.filter(label="static").sort("world_size")
        speed.plot(bound["world_size"], bound["bound_speedup"], color=style.INK, linewidth=3, alpha=0.25, label="bound")
        _lines(planning, here, "plan_ms")
        planning.set_yscale("log")
    highest = max(axes.get_ylim()[1] for axes in above)
    for index, (speed, planning, name) in enumerate(zip(above, below, names, strict=True)):
        style.label_axes(speed, "", "speedup over static" if index == 0 else "", title=name)
        speed.set_ylim(top=highest)
        style.label_axes(planning, "ranks (log scale)", "planning per step (ms)" if index == 0 else "", from_zero=False)
    style.legend_of_figure(figure, above[0])
    columns = ("trace", "world_size", "label", "speedup_vs_static", "bound_speedup", "plan_ms")
    return style.Drawing(figure, table.select(columns))


def _lines(axes: Axes, table: pl.DataFrame, column: str) -> None:
    """One line per policy against world size."""
    for index in table["index"].unique(maintain_order=True):
        line = table.filter(index=index).sort("world_size")
        axes.plot(line["world_size"], line[column], markersize=4.5, label=line["label"][0], **line_look(index))
    sizes = table["world_size"].unique().sort().to_list()
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
