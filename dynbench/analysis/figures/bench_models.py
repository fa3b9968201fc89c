"""Whole language models: time of a step by phase, and memory by phase, over time, and by what it is for."""

from __future__ import annotations

import json

import polars as pl

from dynbench.analysis.figures import style
from dynbench.analysis.figures.bench_rows import measured_rows
from dynbench.runs.run import Run

MODEL = ("size", "context", "batch", "dtype", "device")
PHASES = ("forward", "backward", "optimizer")
MEMORY = {"forward": "forward only", "forward_saved": "forward, activations kept", "step": "full step"}
PARTS = {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer state", "rest": "the rest"}
MOMENTS = {"init": "initialised", "before": "before the step", "after": "after the step"}
TIMELINES = ("forward", "step")
TIMED = ("size", "dtype", "phase", "context")


def bench_transformer(source: Run) -> style.Drawing | None:
    """Mean time of the three phases, one on the other, for each model."""
    table = measured_rows(source, (*MODEL, "phase", "compiled", "warmup", "mean", "sd", "n"))
    if table is None:
        return None
    table = table.filter(pl.col("warmup") == pl.col("warmup").max())
    labels = [f"{_model(row)}, {'compiled' if row['compiled'] else 'eager'}" for row in table.iter_rows(named=True)]
    table = table.with_columns(pl.Series("model", labels))
    names = list(dict.fromkeys(labels))
    first = table.row(0, named=True)
    figure, (axes,) = style.new_figure(
        "Step of a language model by phase",
        f"{source.label}: mean of n = {first['n']} steps of batch {first['batch']} on {first['device']}, after "
        f"{first['warmup']} left out. Lines are the standard deviation of the whole step.",
        height_in=2.6 + 0.34 * len(names),
    )
    left = [0.0] * len(names)
    for number, phase in enumerate(PHASES):
        ms = _by_model(table.filter(pl.col("phase") == phase), names, "mean")
        axes.barh(names, ms, left=left, color=style.color(number), label=phase)
        left = [start + more for start, more in zip(left, ms, strict=True)]
    spread = _by_model(table.filter(pl.col("phase") == "step"), names, "sd")
    axes.errorbar(left, names, xerr=spread, fmt="none", ecolor="black", capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("time, mean (ms)")
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table)


def bench_memory(source: Run) -> style.Drawing | None:
    """Peak memory of each phase over the context length."""
    table = measured_rows(source, (*MODEL, "phase", "quantity", "p50", "before_mb"))
    if table is None:
        return None
    table = table.filter(pl.col("quantity") == "peak").drop("quantity").rename({"p50": "peak_mb"})
    lines = table.select("size", "dtype").unique(maintain_order=True).rows()
    first = table.row(0, named=True)
    figure, panels = style.new_figure(
        "Peak memory of a language model by phase",
        f"{source.label}: batch {first['batch']} on {first['device']}, one pass per point; parameters and, of the full "
        "step, what AdamW keeps are in it.",
        columns=len(lines),
        width_in=max(8.0, 3.6 * len(lines)),
        share_y=True,
    )
    for axes, (size, dtype) in zip(panels, lines, strict=True):
        of_model = table.filter((pl.col("size") == size) & (pl.col("dtype") == dtype))
        for number, (phase, shown) in enumerate(MEMORY.items()):
            rows = of_model.filter(pl.col("phase") == phase).sort("context")
            axes.plot(rows["context"], rows["peak_mb"], "o-", color=style.color(number), label=shown)
        axes.set_xticks(sorted(set(of_model["context"])))
        style.label_axes(axes, "context (tokens)", "peak memory (MB)", title=f"{size}, {dtype}")
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, table)


def bench_memory_timeline(source: Run) -> style.Drawing | None:
    """Memory held over time, forward only and in a full step, at the longest context."""
    file = source.ranks_dir / "timelines.jsonl"
    if not file.is_file():
        return None
    complete = file.read_text(encoding="utf-8").rpartition("\n")[0]
    lines = [line for line in map(json.loads, complete.splitlines()) if line["phase"] in TIMELINES]
    # a case that was interrupted between its timeline and its rows is measured anew
    kept = list({tuple(line[key] for key in TIMED): line for line in lines}.values())
    shown = [line for line in kept if line["context"] == max(each["context"] for each in kept)]
    if not shown:
        return None
    first = shown[0]
    figure, panels = style.new_figure(
        "Memory over time",
        f"{source.label}: context {first['context']}, batch {first['batch']}; one pass each, watched, which slows it "
        "down: compare shapes, not times. It starts with the parameters and, of the full step, what AdamW keeps.",
        columns=2,
    )
    points = []
    for axes, phase in zip(panels, TIMELINES, strict=True):
        for number, line in enumerate(each for each in shown if each["phase"] == phase):
            label = f"{line['size']}, {line['dtype']}"
            axes.step(line["ms"], line["mb"], where="post", color=style.color(number), label=label, linewidth=1)
            names = {key: line[key] for key in TIMED}
            points += [{**names, "ms": ms, "mb": mb} for ms, mb in zip(line["ms"], line["mb"], strict=True)]
        style.label_axes(axes, "time (ms)", "memory held (MB)", title=MEMORY[phase])
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, pl.DataFrame(points))


def bench_optimizer(source: Run) -> style.Drawing | None:
    """Memory at three moments by what it is for, with and without divided optimizer state."""
    table = measured_rows(source, (*MODEL, "way", "processes", "quantity", "moment", "part", "p50"))
    if table is None:
        return None
    table = table.filter(pl.col("quantity") == "memory").drop("quantity").rename({"p50": "mb"})
    models = table.select("size", "dtype").unique(maintain_order=True).rows()
    first = table.row(0, named=True)
    figure, panels = style.new_figure(
        "Memory of a rank with and without divided optimizer state",
        f"{source.label}: {first['processes']} ranks on {first['device']}, context {first['context']}, batch "
        f"{first['batch']}; maximum over ranks. Marks are peaks since the moment before.",
        columns=len(models),
        width_in=max(8.0, 3.0 + 4.0 * len(models)),
        share_y=True,
    )
    for axes, (size, dtype) in zip(panels, models, strict=True):
        of_model = table.filter((pl.col("size") == size) & (pl.col("dtype") == dtype))
        ways = list(dict.fromkeys(of_model["way"]))
        keys = {f"{shown}, {way}": (way, moment) for moment, shown in MOMENTS.items() for way in ways}
        values = {(row["way"], row["moment"], row["part"]): row["mb"] for row in of_model.iter_rows(named=True)}
        left = [0.0] * len(keys)
        for number, (part, shown) in enumerate(PARTS.items()):
            mb = [values.get((*key, part), 0.0) for key in keys.values()]
            axes.barh(list(keys), mb, left=left, color=style.color(number), label=shown)
            left = [start + more for start, more in zip(left, mb, strict=True)]
        peaks = [values.get((*key, "peak"), 0.0) for key in keys.values()]
        axes.plot(peaks, list(keys), "k|", markersize=18, markeredgewidth=2, label="peak")
        style.label_axes(axes, "memory (MB)", "", title=f"{size}, {dtype}", from_zero=False)
    panels[0].invert_yaxis()
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, table)


def _model(row: dict[str, object]) -> str:
    return f"{row['size']}, {row['context']} tokens, {row['dtype']}"


def _by_model(rows: pl.DataFrame, names: list[str], column: str) -> list[float]:
    values = dict(zip(rows["model"], rows[column], strict=True))
    return [values.get(name) or 0.0 for name in names]
