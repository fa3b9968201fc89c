"""What the plans of a `solve` run cost: against static and the bound, rank by rank, and what heuristics lose."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.solve_policies import (
    LINE,
    describe,
    line_look,
    policy_label,
    read_rows,
    solve_lines,
    traces,
)
from dynbench.runs.run import Run

PREFERRED = ("partition", "prefix")
"""The policy shown beside static: the first of these that was solved, else the first other one."""
GAPS = "greedy_gaps.csv"
GAP_COLUMNS = ("trace", "world_size", "step", "heuristic", "max_cost_gap", "variance_gap")
COST_COLUMNS = ("trace", "world_size", "policy", "window", "rank", "cost", "samples")


def solve_speedup(source: Run) -> style.Drawing | None:
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
    return style.Drawing(figure, table.select(*LINE, "speedup_vs_static", "bound_speedup", "plan_ms"))


def _lines(axes: Axes, table: pl.DataFrame, column: str) -> None:
    """One line per policy against world size."""
    for index in table["index"].unique(maintain_order=True):
        line = table.filter(index=index).sort("world_size")
        axes.plot(line["world_size"], line[column], markersize=4.5, label=line["label"][0], **line_look(index))
    sizes = table["world_size"].unique().sort().to_list()
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()


def solve_rank_costs(source: Run) -> style.Drawing | None:
    """Sorted costs of the first step's ranks at the smallest world size, with the bound."""
    lines = solve_lines(source)
    if lines is None or "static" not in lines["label"]:
        return None
    others = [label for label in lines["label"].unique(maintain_order=True) if label != "static"]
    if not others:
        return None
    shown = ("static", next((name for name in PREFERRED if name in others), others[0]))
    ranks = int(str(lines["world_size"].min()))
    table = _rank_costs(source).filter(pl.col("label").is_in(shown), world_size=ranks)
    names = traces(lines.filter(world_size=ranks))
    figure, panels = style.new_figure(
        f"One step of {ranks} ranks, {shown[0]} against {shown[1]}",
        f"{source.label}: predicted cost per rank in the first planned step, dearest rank first. The step lasts as "
        "long as its dearest rank; the space above the others is what they wait.",
        columns=len(names),
        width_in=2.0 + 2.8 * len(names),
        height_in=4.2,
    )
    for axes, name in zip(panels, names, strict=True):
        for index, label in enumerate(shown):
            costs = table.filter(trace=name, label=label)["cost"].sort(descending=True)
            at = [rank + 0.4 * (index - 0.5) for rank in range(len(costs))]
            axes.bar(at, costs, width=0.38, color=style.color(index), label=label)
        y_label = "predicted cost of the step" if axes is panels[0] else ""
        style.label_axes(axes, "ranks, dearest first", y_label, title=name)
        axes.set_xticks([])
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, table)


def _rank_costs(source: Run) -> pl.DataFrame:
    frame = read_rows(source, "rank_costs.csv", COST_COLUMNS)
    labels = [policy_label(policy, window) for policy, window in frame.select("policy", "window").iter_rows()]
    return frame.with_columns(label=pl.Series(labels))


def solve_greedy_gap(source: Run) -> style.Drawing | None:
    """Above: excess of the maximum, per heuristic; below: greedy's excess of the variance."""
    if not (source.path / GAPS).is_file():
        return None
    table = read_rows(source, GAPS, GAP_COLUMNS)
    names = traces(table)
    known = table["world_size"].unique().sort().to_list()
    sizes = list(dict.fromkeys((known[0], known[-1])))
    table = table.filter(pl.col("world_size").is_in(sizes))
    heuristics = table["heuristic"].unique(maintain_order=True).to_list()
    figure, panels = style.new_figure(
        "prefix: gap of heuristic counts to the exact ones",
        f"{source.label}: share of steps whose gap is at most x, from {table['step'].n_unique()} steps each. Maximum: "
        "relative to the exact one; greedy's gap is provably zero. Variance: in units of the squared maximum, where "
        "the exact variance is known. Smallest and largest world size.",
        rows=2,
        columns=len(names),
        width_in=2.0 + 2.9 * len(names),
        height_in=6.4,
    )
    above, below = panels[: len(names)], panels[len(names) :]
    for upper, lower, name in zip(above, below, names, strict=True):
        here = table.filter(trace=name)
        for index, heuristic in enumerate(heuristics):
            for order, size in enumerate(sizes):
                part = here.filter(heuristic=heuristic, world_size=size)
                dashes = style.LINE_STYLES[order % len(style.LINE_STYLES)]
                for axes, column in ((upper, "max_cost_gap"), (lower, "variance_gap")):
                    gaps = part[column].drop_nulls()
                    if len(gaps) and (axes is upper or heuristic == "greedy"):
                        label = f"{heuristic}, {size} ranks"
                        axes.ecdf(gaps, color=style.color(index), linestyle=dashes, label=label)
        left = upper is above[0]
        style.label_axes(upper, "gap of the maximum", "share of steps" if left else "", title=name)
        style.label_axes(lower, "greedy's gap of the variance", "share of steps" if left else "")
    for axes in panels:
        axes.set_ylim(0, 1.05)
    style.legend_of_figure(figure, above[0])
    return style.Drawing(figure, table)
