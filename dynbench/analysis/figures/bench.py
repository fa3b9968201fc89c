"""Benchmarks: collectives, attention, half precision, and the time and memory of whole language models."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from dynbench.analysis.figures.charts import (
    DASHES,
    INK,
    Bars,
    Drawing,
    Look,
    Part,
    draw_panels,
    facets,
    figure,
    handles,
    looks,
)
from dynbench.runs.run import Run
from dynbench.units import format_count

PERCENTILES = ("p20", "p80")
COLLECTIVES = ("operation", "size", "p20", "p50", "p80", "busbw", "processes", "backend", "type", "n")
ATTENTION = (
    *("way", "pass", "length", "channels", "dtype", "batch", "causal", "device"),
    *("p20", "p50", "p80", "n", "saved_mb", "peak_mb"),
)
MODES = {"float32": "full, float32", "float16": "mixed, float16", "bfloat16": "mixed, bfloat16"}
KERNELS = ("size", "context", "dtype", "device", "phase", "part", "kernel", "calls", "mean", "share", "n")
KERNEL_PHASES = {"inference": "inference", "step": "a step with AdamW"}
KINDS = {
    "matmul": "compute",
    "softmax": "#882255",
    "norm": "#CC6677",
    "loss": "#332288",
    "embedding": "#44AA99",
    "elementwise": "#DDCC77",
    "copy": "#999933",
    "optimizer": "optimizer",
    "other": "other",
}
"""Kind of a kernel to its colour."""
MODEL = ("size", "context", "batch", "dtype", "device")
STEP = tuple(Part(name, name, name) for name in ("forward", "backward", "optimizer"))
MEMORY = {"forward": "forward only", "forward_saved": "forward, activations kept", "step": "full step"}
HELD = (
    Part("parameters", "parameters", "parameters"),
    Part("gradients", "gradients", "gradients"),
    Part("optimizer", "optimizer state", "optimizer"),
    Part("rest", "the rest", "other"),
)
MOMENTS = {"init": "initialised", "before": "before the step", "after": "after the step"}
TIMED = ("size", "dtype", "phase", "context")


def measured(*columns: str, **only: Sequence[str]) -> Callable[[Run], pl.DataFrame | None]:
    """What reads these columns of the rows that were measured, and of these the ones with `only` these values.

    It returns None where there are none, or another benchmark wrote them.
    """

    def read(source: Run) -> pl.DataFrame | None:
        file = source.path / "rows.csv"
        if not file.is_file():
            return None
        table = pl.read_csv(file, infer_schema_length=None)
        if not set(columns) <= set(table.columns):
            return None
        chosen = (pl.col(column).is_in(list(values)) for column, values in only.items())
        table = table.filter(pl.col("status") == "ok", *chosen).select(columns)
        return None if table.is_empty() else table

    return read


def _unique(table: pl.DataFrame, column: str) -> list[str]:
    return table[column].unique(maintain_order=True).to_list()


def _over_sizes(
    title: str, note: str, table: pl.DataFrame, rows: pl.DataFrame, by: str, looks_by: tuple[str, str],
    layout: Mapping[str, Any], **panel: Any,
) -> Drawing:  # fmt: skip
    """Lines over sizes, each with its tick: a panel for each value of `by`, and of two columns colours and dashes."""
    colors = looks(_unique(rows, looks_by[0]))
    dashes = {name: Look(INK, dashes=way) for name, way in zip(_unique(rows, looks_by[1]), DASHES, strict=False)}
    shown = {
        f"{one}, {two}": color._replace(dashes=dash.dashes, width=1.3)
        for one, color in colors.items()
        for two, dash in dashes.items()
    }
    legend = [*handles(colors), *(handles(dashes) if len(dashes) > 1 else ())]
    ticks = {size: format_count(size) for size in sorted(set(rows[panel["x"]]))}
    panels = facets(rows.with_columns(series=pl.format("{}, {}", *looks_by)), by, ticks=ticks, **panel)
    return draw_panels(title, note, table, panels, shown, series="series", legend=legend, **layout)


def _wide(rows: pl.DataFrame, names: Sequence[str], of: str, value: str) -> pl.DataFrame:
    """A row for each of the names of models, a column for each value of another column; null where there is none."""
    found = rows.pivot(of, index="model", values=value, aggregate_function="first")
    return pl.DataFrame({"model": names}).join(found, on="model", how="left", maintain_order="left")


@figure("bench", measured(*COLLECTIVES))
def bench_collectives(table: pl.DataFrame) -> Drawing:
    """Time by size.

    Median time over the size, a panel for each operation.
    """
    spread = "An iteration lasts the maximum over ranks. Lines span the 20th to 80th percentile"
    return _by_size(table, "Time of collectives by size", "p50", "time, median (ms)", spread)


@figure("bench", measured(*COLLECTIVES))
def bench_bandwidth(table: pl.DataFrame) -> Drawing:
    """Bus bandwidth by size.

    Bus bandwidth over the size, a panel for each operation.
    """
    meaning = "Bus bandwidth: size over mean time, times the least share of it that a rank sends"
    return _by_size(table, "Bus bandwidth of collectives by size", "busbw", "bus bandwidth (GB/s)", meaning)


def _by_size(table: pl.DataFrame, title: str, column: str, label: str, meaning: str) -> Drawing:
    table, timed = table.with_columns(megabytes=pl.col("size") / 1e6), column == "p50"
    ranks = pl.format("{}, {} processes", "backend", "processes")
    rows = table.sort("size", maintain_order=True).with_columns(ranks=ranks, mib=pl.col("size") / 2**20)
    counted = " to ".join(f"{n}" for n in sorted({min(table["n"]), max(table["n"])}))
    note = f"n = {counted} iterations per size, warm-up left out. {meaning}."
    return _over_sizes(
        title, note, table, rows, "operation", ("ranks", "type"), {"panel_in": 2.5}, x="mib", y=column, y_label=label,
        x_label="size (MiB, log scale)", log="xy" if timed else "x", bars=PERCENTILES if timed else None,
    )  # fmt: skip


@figure("bench", measured(*ATTENTION))
def bench_attention(table: pl.DataFrame) -> Drawing:
    """Time of each pass by length.

    Median time over the length, a row of panels for each pass, a column for each width.
    """
    note = f"n = {table['n'][0]} iterations per point, warm-up left out. Lines span the 20th to 80th percentile."
    drawn = table.with_columns(each="pass", value="p50")
    return _by_length("Attention by length: time", note, "time, median (ms)", drawn, table, PERCENTILES)


@figure("bench", measured(*ATTENTION))
def bench_attention_memory(table: pl.DataFrame) -> Drawing:
    """Memory before backward, and at most, by length."""
    table = table.unique(("length", "channels", "way", "dtype"), keep="first", maintain_order=True)
    kinds = {"saved_mb": "before backward", "peak_mb": "peak"}
    drawn = pl.concat(table.with_columns(each=pl.lit(name), value=pl.col(column)) for column, name in kinds.items())
    note = "Beside queries, keys and values. Where lines coincide, the last is seen."
    return _by_length("Attention by length: memory", note, "memory (MB)", drawn, table)


def _by_length(
    title: str, note: str, label: str, drawn: pl.DataFrame, table: pl.DataFrame, bars: tuple[str, str] | None = None
) -> Drawing:
    """A row of panels for what `each` is in the rows drawn, a column for each width."""
    first, widths = table.row(0, named=True), sorted(set(table["channels"]))
    mask = "causal" if first["causal"] else "no mask"
    about = f"Batch {first['batch']}, no heads, {mask}, on {first['device']}. What did not run is absent."
    order = pl.col("each").cast(pl.Enum(_unique(drawn, "each")))
    rows = drawn.sort(order, "channels", "length", maintain_order=True)
    rows = rows.with_columns(panel=pl.format("{}, d = {}", "each", "channels"))
    return _over_sizes(
        title, f"{about} {note}", table, rows, "panel", ("way", "dtype"), {"columns": len(widths), "panel_in": 2.6},
        x="length", y="value", x_label="length (tokens, log scale)", y_label=label, log="xy", bars=bars,
    )  # fmt: skip


@figure(
    "bench",
    measured("case", "study", "shape", "dtype", "device", "mean", "sd", "reference_error", "n", study=("sum", "time")),
)
def bench_precision(table: pl.DataFrame) -> Drawing | None:
    """Errors of the sums, and time in full and in mixed precision.

    Error of each sum against float64, and time of forward and backward in full and in mixed precision.
    """
    table = table.with_columns(pl.col("case").str.strip_prefix("sum: "))
    sums, times = (table.filter(study=study) for study in ("sum", "time"))
    if sums.is_empty() or times.is_empty():
        return None
    mean, sd = pl.col("mean"), pl.col("sd").cast(pl.Float64).fill_null(0)
    errors = sums.select(
        "case", "reference_error", text=pl.Series([f"{error:.2g}" for error in sums["reference_error"]])
    )
    modes = times.select(pl.col("dtype").replace(MODES), mean, low=mean - sd, high=mean + sd)
    parts = {name: [Part(name, "", "compute")] for name in ("reference_error", "mean")}
    bars = [
        Bars(
            rows=errors, parts=parts["reference_error"], x_label="error of the sum", title="sums, against float64",
            texts="text", x_end=1.2 * max(sums["reference_error"]),
        ),
        Bars(
            rows=modes, parts=parts["mean"], x_label="time, mean (ms)", title="forward and backward",
            ends=("low", "high"),
        ),
    ]  # fmt: skip
    note = (
        f"On {times['device'][0]}. Sums of {sums['shape'][0].strip('[]')} terms of 0.01, with how far each is off. "
        f"Forward and backward of a toy model: mean of n = {times['n'][0]} iterations, warm-up left out; lines are the "
        "standard deviation."
    )
    return draw_panels("Half precision: sums and steps", note, table.drop("shape"), bars, sharey=False, width_in=11)


@figure("bench", measured(*KERNELS, part=("kind",), phase=tuple(KERNEL_PHASES)))
def bench_kernels(table: pl.DataFrame) -> Drawing:
    """Kinds of kernels at inference and in a step, as shares.

    What share of inference and of a training step each kind of kernel takes, a bar for each model.
    """
    table = table.with_columns(model=pl.format("{}, context {}, {}", "size", "context", "dtype"))
    names, parts = _unique(table, "model"), [Part(kind, kind, color) for kind, color in KINDS.items()]
    drawn, label = table.with_columns(pl.col("share") * 100), "share of the time of all kernels (%)"
    bars = [
        Bars(rows=_wide(rows, names, "kernel", "share"), parts=parts, x_label=label, title=title)
        for phase, title in KERNEL_PHASES.items()
        if (rows := drawn.filter(phase=phase)).height
    ]
    note = f"Mean of n = {table['n'][0]} profiled steps on {table['device'][0]}, as shares of all kernels."
    return draw_panels("Kernels of a language model by kind", note, table, bars)


@figure("bench", measured(*MODEL, "phase", "compiled", "warmup", "mean", "sd", "n"))
def bench_transformer(table: pl.DataFrame) -> Drawing:
    """A step by phase.

    Mean time of the three phases, one on the other, for each model.
    """
    compiled = pl.when(pl.col("compiled").cast(pl.Boolean)).then(pl.lit("compiled")).otherwise(pl.lit("eager"))
    table = table.filter(pl.col("warmup") == pl.col("warmup").max()).with_columns(
        model=pl.format("{}, {} tokens, {}, {}", "size", "context", "dtype", compiled)
    )
    names, first = _unique(table, "model"), table.row(0, named=True)
    rows = _wide(table.filter(pl.col("phase") != "step"), names, "phase", "mean")
    total = rows.drop("model").sum_horizontal()
    sd = _wide(table.filter(phase="step"), names, "phase", "sd")["step"].fill_null(0)
    note = (
        f"Mean of n = {first['n']} steps of batch {first['batch']} on {first['device']}, after {first['warmup']} left "
        "out. Lines are the standard deviation of the whole step."
    )
    rows = rows.with_columns(low=total - sd, high=total + sd)
    bars = Bars(rows=rows, parts=STEP, x_label="time, mean (ms)", ends=("low", "high"))
    return draw_panels("Step of a language model by phase", note, table, [bars])


@figure("bench", measured(*MODEL, "phase", "quantity", "p50", "before_mb", quantity=("peak",)))
def bench_memory(table: pl.DataFrame) -> Drawing:
    """Peak memory of each phase by context.

    Peak memory of each phase over the context length, a panel for each model.
    """
    table = table.drop("quantity").rename({"p50": "peak_mb"})
    panel = pl.format("{}, {}", "size", "dtype")
    rows = table.sort("context", maintain_order=True).with_columns(pl.col("phase").replace(MEMORY), panel=panel)
    note = (
        f"Batch {table['batch'][0]} on {table['device'][0]}, one pass per point; parameters and, of the full step, "
        "what AdamW keeps are in it."
    )
    return _over_sizes(
        "Peak memory of a language model by phase", note, table, rows, "panel", ("phase", "device"),
        {"panel_in": 2.8, "sharey": True}, x="context", y="peak_mb", x_label="context (tokens)",
        y_label="peak memory (MB)",
    )  # fmt: skip


def _timelines(source: Run) -> pl.DataFrame | None:
    """A line per case at the longest context, its times and amounts as lists."""
    file = source.ranks_dir / "timelines.jsonl"
    if not file.is_file():
        return None
    complete = file.read_text(encoding="utf-8").rpartition("\n")[0]
    lines = pl.read_ndjson(io.StringIO(complete)).filter(pl.col("phase").is_in(["forward", "step"]))
    # a case that was interrupted between its timeline and its rows is measured anew
    lines = lines.unique(TIMED, keep="last", maintain_order=True).filter(pl.col("context") == pl.col("context").max())
    return None if lines.is_empty() else lines


@figure("bench", _timelines)
def bench_memory_timeline(lines: pl.DataFrame) -> Drawing:
    """Memory over time, forward only and a full step.

    Memory held over time, forward only and in a full step, at the longest context.
    """
    table = lines.explode("ms", "mb").select(*TIMED, "ms", "mb")
    drawn = table.with_columns(pl.col("phase").replace(MEMORY), series=pl.format("{}, {}", "size", "dtype"))
    panels = facets(drawn, "phase", x="ms", y="mb", x_label="time (ms)", y_label="memory held (MB)", stairs=True)
    note = (
        f"Context {lines['context'][0]}, batch {lines['batch'][0]}; one pass each, watched, which slows it down: "
        "compare shapes, not times. It starts with the parameters and, of the full step, what AdamW keeps."
    )
    return draw_panels("Memory over time", note, table, panels, looks(_unique(drawn, "series")), series="series")


@figure(
    "bench",
    measured(*MODEL, "way", "processes", "quantity", "moment", "part", "p50", quantity=("memory",)),
)
def bench_optimizer(table: pl.DataFrame) -> Drawing:
    """Memory of a rank at three moments, with the state whole and sharded.

    Memory at three moments by what it is for, with and without divided optimizer state.
    """
    table = table.drop("quantity").rename({"p50": "mb"})
    drawn = table.with_columns(model=pl.format("{}, {}", pl.col("moment").replace(MOMENTS), "way"))
    names = [f"{moment}, {way}" for moment in MOMENTS.values() for way in _unique(table, "way")]
    bars = [
        Bars(rows=_wide(rows, names, "part", "mb"), parts=HELD, x_label="memory (MB)", title=title, marks="peak")
        for (title,), rows in drawn.group_by(pl.format("{}, {}", "size", "dtype"), maintain_order=True)
    ]
    first = table.row(0, named=True)
    note = (
        f"{first['processes']} ranks on {first['device']}, context {first['context']}, batch {first['batch']}; maximum "
        "over ranks. Diamonds are peaks since the moment before."
    )
    return draw_panels("Memory of a rank with and without sharded optimizer state", note, table, bars)
