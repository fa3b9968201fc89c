"""Benchmarks: collectives, attention, half precision, and the time and memory of whole language models."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import polars as pl
from matplotlib.artist import Artist

from dynbench.analysis.figures.charts import (
    DASHES,
    Bars,
    Look,
    Part,
    bar_figure,
    draw_bars,
    facets,
    handles,
    line_figure,
    looks,
    plain_ticks,
    wide,
)
from dynbench.analysis.figures.style import COLORS, INK, Drawing, new_figure
from dynbench.runs.run import Run
from dynbench.units import mib

PERCENTILES = ("p20", "p80")
COLLECTIVES = ("operation", "size", "p20", "p50", "p80", "busbw", "processes", "backend", "type", "n")
ATTENTION = (
    *("way", "pass", "length", "channels", "dtype", "batch", "causal", "device"),
    *("p20", "p50", "p80", "n", "saved_mb", "peak_mb"),
)
PRECISION = ("case", "study", "shape", "dtype", "device", "mean", "sd", "reference_error", "n")
MODES = {"float32": "full, float32", "float16": "mixed, float16", "bfloat16": "mixed, bfloat16"}
KERNELS = ("size", "context", "dtype", "device", "phase", "part", "kernel", "calls", "mean", "share", "n")
KERNEL_PHASES = {"inference": "inference", "step": "a step with AdamW"}
KINDS = {
    "matmul": COLORS["compute"],
    "softmax": "#882255",
    "norm": "#CC6677",
    "loss": "#332288",
    "embedding": "#44AA99",
    "elementwise": "#DDCC77",
    "copy": "#999933",
    "optimizer": COLORS["optimizer"],
    "other": COLORS["other"],
}
"""Kind of a kernel to its colour."""
MODEL = ("size", "context", "batch", "dtype", "device")
STEP = tuple(Part(name, name, COLORS[name]) for name in ("forward", "backward", "optimizer"))
MEMORY = {"forward": "forward only", "forward_saved": "forward, activations kept", "step": "full step"}
HELD = (
    Part("parameters", "parameters", COLORS["parameters"]),
    Part("gradients", "gradients", COLORS["gradients"]),
    Part("optimizer", "optimizer state", COLORS["optimizer"]),
    Part("rest", "the rest", COLORS["other"]),
)
MOMENTS = {"init": "initialised", "before": "before the step", "after": "after the step"}
TIMELINES = ("forward", "step")
TIMED = ("size", "dtype", "phase", "context")


def measured_rows(source: Run, columns: Sequence[str]) -> pl.DataFrame | None:
    """These columns of the rows that were measured; None where there are none, or another benchmark wrote them."""
    file = source.path / "rows.csv"
    if not file.is_file():
        return None
    table = pl.read_csv(file, infer_schema_length=None)
    if not set(columns) <= set(table.columns):
        return None
    table = table.filter(pl.col("status") == "ok").select(columns)
    return None if table.is_empty() else table


def _crossed(table: pl.DataFrame, colored: str, dashed: str) -> tuple[pl.DataFrame, dict[str, Look], list[Artist]]:
    """Lines that differ in two columns: `series` in the table, a colour for the one, dashes for the other."""
    by_color = looks(table[colored].unique(maintain_order=True).to_list())
    by_dash = dict(zip(table[dashed].unique(maintain_order=True), DASHES, strict=False))
    shown = {
        f"{one}, {two}": replace(by_color[one], dashes=by_dash[two], width=1.3) for one in by_color for two in by_dash
    }
    legend = handles(by_color)
    if len(by_dash) > 1:
        legend += handles({name: Look(INK, dashes=dashes) for name, dashes in by_dash.items()})
    return table.with_columns(series=pl.format("{}, {}", colored, dashed)), shown, legend


def bench_collectives(source: Run) -> Drawing | None:
    """Median time over the size, a panel for each operation."""
    spread = "An iteration lasts the maximum over ranks. Lines span the 20th to 80th percentile"
    return _by_size(source, "Time of collectives by size", "p50", "time, median (ms)", spread)


def bench_bandwidth(source: Run) -> Drawing | None:
    """Bus bandwidth over the size, a panel for each operation."""
    meaning = "Bus bandwidth: size over mean time, times what a rank sends at least as a part of the size"
    return _by_size(source, "Bus bandwidth of collectives by size", "busbw", "bus bandwidth (GB/s)", meaning)


def _by_size(source: Run, title: str, column: str, label: str, meaning: str) -> Drawing | None:
    table = measured_rows(source, COLLECTIVES)
    if table is None:
        return None
    table = table.with_columns(megabytes=pl.col("size") / 1e6)
    ranks, sizes = pl.format("{}, {} processes", "backend", "processes"), sorted(set(table["size"]))
    drawn = table.with_columns(ranks=ranks, mib=pl.col("size") / 2**20).sort("size", maintain_order=True)
    drawn, shown, legend = _crossed(drawn, "ranks", "type")
    timed = column == "p50"
    panels = facets(
        drawn, "operation", x="mib", y=column, x_label="size (MiB, log scale)", y_label=label,
        log="xy" if timed else "x", bars=PERCENTILES if timed else None,
        ticks={mib(size): f"{float(f'{mib(size):.3g}'):g}" for size in sizes},
    )  # fmt: skip
    counted = " to ".join(f"{n}" for n in sorted({min(table["n"]), max(table["n"])}))
    note = f"n = {counted} iterations per size, warm-up left out."
    return line_figure(title, f"{note} {meaning}.", table, panels, shown, series="series", legend=legend, panel_in=2.5)


def bench_attention(source: Run) -> Drawing | None:
    """Median time over the length, a row of panels for each pass, a column for each width."""
    table = measured_rows(source, ATTENTION)
    if table is None:
        return None
    note = f"n = {table['n'][0]} iterations per point, warm-up left out. Lines span the 20th to 80th percentile."
    drawn = table.with_columns(each="pass", value="p50")
    return _by_length("Attention by length: time", note, "time, median (ms)", drawn, table, PERCENTILES)


def bench_attention_memory(source: Run) -> Drawing | None:
    """What is held between the passes, and the most at once, over the length."""
    table = measured_rows(source, ATTENTION)
    if table is None:
        return None
    table = table.unique(("length", "channels", "way", "dtype"), keep="first", maintain_order=True)
    kinds = {"saved_mb": "before backward", "peak_mb": "peak"}
    drawn = pl.concat(table.with_columns(each=pl.lit(name), value=pl.col(column)) for column, name in kinds.items())
    note = "Beside queries, keys and values. Of lines that coincide the last is seen."
    return _by_length("Attention by length: memory", note, "memory (MB)", drawn, table)


def _by_length(
    title: str, note: str, label: str, drawn: pl.DataFrame, table: pl.DataFrame, bars: tuple[str, str] | None = None
) -> Drawing:
    """A row of panels for what `each` is in the rows drawn, a column for each width."""
    first, widths = table.row(0, named=True), sorted(set(table["channels"]))
    mask = "causal" if first["causal"] else "no mask"
    about = f"Batch {first['batch']}, no heads, {mask}, on {first['device']}. What did not run is absent."
    order = pl.col("each").cast(pl.Enum(drawn["each"].unique(maintain_order=True)))
    drawn, shown, legend = _crossed(drawn, "way", "dtype")
    panels = facets(
        drawn.sort(order, "channels", "length", maintain_order=True).with_columns(
            panel=pl.format("{}, d = {}", "each", "channels")
        ),
        "panel", x="length", y="value", x_label="length (tokens, log scale)", y_label=label, log="xy", bars=bars,
        ticks={length: f"{length:,}" for length in sorted(set(table["length"]))},
    )  # fmt: skip
    return line_figure(
        title,
        f"{about} {note}",
        table,
        panels,
        shown,
        series="series",
        legend=legend,
        columns=len(widths),
        panel_in=2.6,
    )


def bench_precision(source: Run) -> Drawing | None:
    """Error of each sum against float64, and time of forward and backward in full and in mixed precision."""
    table = measured_rows(source, PRECISION)
    if table is None:
        return None
    table = table.filter(pl.col("study").is_in(["sum", "time"])).with_columns(pl.col("case").str.strip_prefix("sum: "))
    sums, times = (table.filter(pl.col("study") == study) for study in ("sum", "time"))
    if sums.is_empty() or times.is_empty():
        return None
    figure, (left, right) = new_figure(
        "Half precision: sums and steps",
        f"On {times['device'][0]}. Sums of {sums['shape'][0].strip('[]')} terms of 0.01, each off by the number beside "
        "its mark; one that is exact has no mark. Forward and backward of the toy: mean of "
        f"n = {times['n'][0]} iterations, warm-up left out; lines are the standard deviation.",
        panels=2, columns=2, width_in=11, panel_in=2.4,
    )  # fmt: skip
    for case, error in sums.select("case", "reference_error").iter_rows():
        left.plot(error or float("nan"), case, "o", color=COLORS["compute"], markersize=8)
        where, of = ((error, case), "data") if error else ((0, case), ("axes fraction", "data"))
        left.annotate(f"{error:.2g}", where, (8, -3), xycoords=of, textcoords="offset points")
    left.set(xscale="log", xlabel="error of the sum (log scale)", title="sums, against float64")
    left.margins(x=0.3, y=0.2)
    left.invert_yaxis()
    plain_ticks(left.xaxis)
    sd = pl.col("sd").cast(pl.Float64).fill_null(0)
    times = times.with_columns(low=pl.col("mean") - sd, high=pl.col("mean") + sd)
    time = Part("mean", "", COLORS["compute"])
    names = [MODES[dtype] for dtype in times["dtype"]]
    draw_bars(right, names, Bars(times, [time], "time, mean (ms)", "forward and backward", ("low", "high")))
    return Drawing(figure, table.drop("shape"))


def bench_kernels(source: Run) -> Drawing | None:
    """What share of inference and of a training step each kind of kernel takes, a bar for each model."""
    table = measured_rows(source, KERNELS)
    if table is None:
        return None
    table = table.filter((pl.col("part") == "kind") & pl.col("phase").is_in(list(KERNEL_PHASES)))
    table = table.with_columns(model=pl.format("{}, context {}, {}", "size", "context", "dtype"))
    models = table["model"].unique(maintain_order=True).to_list()
    parts = [Part(kind, kind, color) for kind, color in KINDS.items()]
    bars = [
        Bars(
            wide(shares, "model", models, "kernel", "share", list(KINDS)),
            parts,
            "share of the time of all kernels (%)",
            title,
        )
        for phase, title in KERNEL_PHASES.items()
        for shares in [table.filter(phase=phase).with_columns(pl.col("share") * 100)]
    ]
    note = f"Mean of n = {table['n'][0]} profiled steps on {table['device'][0]}, as shares of all kernels."
    return bar_figure("Kernels of a language model by kind", note, table, models, bars)


def bench_transformer(source: Run) -> Drawing | None:
    """Mean time of the three phases, one on the other, for each model."""
    table = measured_rows(source, (*MODEL, "phase", "compiled", "warmup", "mean", "sd", "n"))
    if table is None:
        return None
    table = table.filter(pl.col("warmup") == pl.col("warmup").max())
    names = [
        f"{row['size']}, {row['context']} tokens, {row['dtype']}, {'compiled' if row['compiled'] else 'eager'}"
        for row in table.iter_rows(named=True)
    ]
    table, models = table.with_columns(pl.Series("model", names)), list(dict.fromkeys(names))
    first = table.row(0, named=True)
    phases = [part.column for part in STEP]
    rows = wide(table, "model", models, "phase", "mean", phases)
    total = rows.select(phases).sum_horizontal()
    sd = wide(table, "model", models, "phase", "sd", ["step"])["step"].fill_null(0)
    rows = rows.with_columns(low=total - sd, high=total + sd)
    note = (
        f"Mean of n = {first['n']} steps of batch {first['batch']} on {first['device']}, after {first['warmup']} left "
        "out. Lines are the standard deviation of the whole step."
    )
    bars = Bars(rows, STEP, "time, mean (ms)", ends=("low", "high"))
    return bar_figure("Step of a language model by phase", note, table, models, [bars])


def bench_memory(source: Run) -> Drawing | None:
    """Peak memory of each phase over the context length, a panel for each model."""
    table = measured_rows(source, (*MODEL, "phase", "quantity", "p50", "before_mb"))
    if table is None:
        return None
    table = table.filter(pl.col("quantity") == "peak").drop("quantity").rename({"p50": "peak_mb"})
    drawn = table.sort("context", maintain_order=True).with_columns(
        series=pl.col("phase").replace(MEMORY), panel=pl.format("{}, {}", "size", "dtype")
    )
    panels = facets(
        drawn, "panel", x="context", y="peak_mb", x_label="context (tokens)", y_label="peak memory (MB)",
        ticks={context: f"{context:,}" for context in sorted(set(table["context"]))},
    )  # fmt: skip
    note = (
        f"Batch {table['batch'][0]} on {table['device'][0]}, one pass per point; parameters and, of the full step, "
        "what AdamW keeps are in it."
    )
    return line_figure(
        "Peak memory of a language model by phase", note, table, panels, looks(list(MEMORY.values())), series="series",
        panel_in=2.8, share_y=True,
    )  # fmt: skip


def bench_memory_timeline(source: Run) -> Drawing | None:
    """Memory held over time, forward only and in a full step, at the longest context."""
    file = source.ranks_dir / "timelines.jsonl"
    if not file.is_file():
        return None
    complete = file.read_text(encoding="utf-8").rpartition("\n")[0]
    lines = pl.read_ndjson(io.StringIO(complete)).filter(pl.col("phase").is_in(TIMELINES))
    # a case that was interrupted between its timeline and its rows is measured anew
    lines = lines.unique(TIMED, keep="last", maintain_order=True).filter(pl.col("context") == pl.col("context").max())
    if lines.is_empty():
        return None
    drawn = lines.explode("ms", "mb").with_columns(
        pl.col("phase").replace(MEMORY), series=pl.format("{}, {}", "size", "dtype")
    )
    panels = facets(drawn, "phase", x="ms", y="mb", x_label="time (ms)", y_label="memory held (MB)", stairs=True)
    note = (
        f"Context {lines['context'][0]}, batch {lines['batch'][0]}; one pass each, watched, which slows it down: "
        "compare shapes, not times. It starts with the parameters and, of the full step, what AdamW keeps."
    )
    table = lines.explode("ms", "mb").select(*TIMED, "ms", "mb")
    shown = looks(drawn["series"].unique(maintain_order=True).to_list())
    return line_figure("Memory over time", note, table, panels, shown, series="series")


def bench_optimizer(source: Run) -> Drawing | None:
    """Memory at three moments by what it is for, with and without divided optimizer state."""
    table = measured_rows(source, (*MODEL, "way", "processes", "quantity", "moment", "part", "p50"))
    if table is None:
        return None
    table = table.filter(pl.col("quantity") == "memory").drop("quantity").rename({"p50": "mb"})
    drawn = table.with_columns(model=pl.format("{}, {}", pl.col("moment").replace(MOMENTS), "way"))
    names = [f"{shown}, {way}" for shown in MOMENTS.values() for way in table["way"].unique(maintain_order=True)]
    bars = [
        Bars(
            wide(rows, "model", names, "part", "mb", [*(part.column for part in HELD), "peak"]),
            HELD,
            "memory (MB)",
            f"{size}, {dtype}",
            marks="peak",
        )
        for (size, dtype), rows in drawn.group_by("size", "dtype", maintain_order=True)
    ]
    first = table.row(0, named=True)
    note = (
        f"{first['processes']} ranks on {first['device']}, context {first['context']}, batch {first['batch']}; maximum "
        "over ranks. Diamonds are peaks since the moment before."
    )
    return bar_figure("Memory of a rank with and without divided optimizer state", note, table, names, bars)
