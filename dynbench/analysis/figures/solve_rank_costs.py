"""One step, rank by rank: cost under static and after dealing anew."""

from __future__ import annotations

import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.solve_lines import policy_label, read_rows, solve_lines, traces
from dynbench.runs.run import Run

PREFERRED = ("partition", "prefix")
"""The policy shown beside static: the first of these that was solved, else the first other one."""


def draw(source: Run) -> style.Drawing | None:
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
        style.label_axes(
            axes, "ranks, dearest first", "predicted cost of the step" if axes is panels[0] else "", title=name
        )
        axes.set_xticks([])
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, table)


def _rank_costs(source: Run) -> pl.DataFrame:
    columns = ("trace", "world_size", "policy", "window", "rank", "cost", "samples")
    frame = read_rows(source, "rank_costs.csv", columns)
    labels = [policy_label(policy, window) for policy, window in frame.select("policy", "window").iter_rows()]
    return frame.with_columns(label=pl.Series(labels))
