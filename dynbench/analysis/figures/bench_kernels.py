"""Kernels of a language model by kind: what share of inference and of a training step each takes."""

from __future__ import annotations

import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.bench_rows import measured_rows
from dynbench.runs.run import Run

MEASURES = ("size", "context", "dtype", "device", "phase", "part", "kernel", "calls", "mean", "share", "n")
PHASES = {"inference": "inference", "step": "a step with AdamW"}


def bench_kernels(source: Run) -> style.Drawing | None:
    """Shares one after the other, a bar for each size, context and type."""
    table = measured_rows(source, MEASURES)
    if table is None:
        return None
    table = table.filter((pl.col("part") == "kind") & pl.col("phase").is_in(list(PHASES)))
    table = table.with_columns(model=pl.format("{}, context {}, {}", "size", "context", "dtype"))
    models = table["model"].unique(maintain_order=True).to_list()
    kinds = table.group_by("kernel").agg(pl.col("share").sum()).sort("share", descending=True)["kernel"].to_list()
    first = table.row(0, named=True)
    figure, panels = style.new_figure(
        "Kernels of a language model by kind",
        f"{source.label}: mean of n = {first['n']} profiled steps on {first['device']}, as shares of all kernels.",
        columns=2,
        width_in=11,
        height_in=2.4 + 0.4 * len(models),
        share_y=True,
    )
    for axes, (phase, title) in zip(panels, PHASES.items(), strict=True):
        left = [0.0] * len(models)
        for number, kind in enumerate(kinds):
            drawn = table.filter((pl.col("phase") == phase) & (pl.col("kernel") == kind))
            shares = dict(zip(drawn["model"], drawn["share"], strict=True))
            widths = [100 * shares.get(model, 0.0) for model in models]
            hatch = "//" if number >= len(style.PALETTE) else None
            axes.barh(models, widths, left=left, color=style.color(number), hatch=hatch, label=kind)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_xlabel("share of the time of all kernels (%)")
        axes.set_title(title)
    panels[0].invert_yaxis()
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, table)
