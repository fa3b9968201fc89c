"""What compressors send, what they cost in time, and what becomes of gradients, losses and perplexity."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.evaluations import reached
from dynbench.analysis.figures.charts import FAINT_INK, Bars, Drawing, Lines, Part, figure, new_figure
from dynbench.analysis.figures.steps import over_steps, smoothing_window
from dynbench.analysis.figures.views import Arms, arm_figure, means, work_rate
from dynbench.analysis.links import SPEEDS_GBPS, faster_gbps, predicted_ms
from dynbench.analysis.merge import MergedRun
from dynbench.units import mb

PARTS = (
    Part("compute_ms", "compute", "compute"),
    Part("compress_ms", "compress", "compress"),
    Part("comm_ms", "communicate", "communication"),
    Part("decompress_ms", "decompress", "decompress"),
)
"""What compression takes of a step, in the order in which it happens."""
SLOWEST_GBPS, POINTS = 0.1, 60
"""Where the curves over links begin, and how many points each has."""
GATHER, COMPUTE, CODE, SEND, UPDATE = KINDS = (
    Part("", "all-gather of parameters", "parameters"),
    Part("", "compute", "compute"),
    Part("", "compress, decompress", "compress"),
    Part("", "what was compressed, on its way", "communication"),
    Part("", "optimizer on the rank's shard", "optimizer"),
)
LANES = ("parameters", "forward and backward", "gradients")
"""Streams of one rank, from top to bottom: what is in different ones runs at the same time."""
BOXES: tuple[tuple[float, float, int, str, Part], ...] = (
    (0, 1, 0, "1", GATHER),
    (1, 1, 0, "2", GATHER),
    (1, 1, 1, "forward 1", COMPUTE),
    (2, 1, 1, "forward 2", COMPUTE),
    (3, 1, 0, "2", GATHER),
    (4, 1, 0, "1", GATHER),
    (4, 1.5, 1, "backward 2", COMPUTE),
    (5.5, 1.5, 1, "backward 1", COMPUTE),
    (5.5, 0.5, 2, "c 2", CODE),
    (6, 0.7, 2, "send 2", SEND),
    (6.7, 0.3, 2, "d", CODE),
    (7, 0.5, 2, "c 1", CODE),
    (7.5, 0.7, 2, "send 1", SEND),
    (8.2, 0.3, 2, "d", CODE),
    (8.5, 1, 1, "step", UPDATE),
)
"""Start, length, lane, text and kind; two blocks, no unit of time."""


def compared(arms: Arms) -> Arms | None:
    """The arms, where one of them compresses."""
    return arms if any(run.facts.config.compress.name != "none" for arm in arms for run in arm.runs) else None


def several(arms: Arms) -> Arms | None:
    """The arms, where one of them compresses, and there are others to hold it against."""
    return compared(arms) if len(arms) > 1 else None


def _perplexity_or_loss(arms: Arms) -> str:
    """What all arms were evaluated by: perplexity where there is one."""
    has = all("perplexity" in run.evaluations.columns for arm in arms for run in arm.runs)
    return "perplexity" if has else "loss"


@figure("train", several)
def compression_loss(arms: Arms) -> Drawing | None:
    """What fewer bytes cost in the last evaluation, and how far the mean gradient is off.

    How many times less an arm sends in all against its evaluation, and bytes against the error of its gradients.
    """
    measure = _perplexity_or_loss(arms)
    keys = {"compression": "traffic_compression_ratio", "sent_mb": "bytes_wire.mean", measure: f"eval.{measure}"}
    table = means(arms, keys | {"gradient_error": "compression.grad_rel_error"})
    table = table.with_columns(pl.col("sent_mb") * mb(1))
    if table.drop_nulls(["compression", measure]).is_empty():
        return None
    panels = [
        Lines(rows=rows, x=x, y=y, x_label=x_label, y_label=y_label, log="xy", names="arm")
        for x, y, x_label, y_label in (
            ("compression", measure, "times fewer bytes, all traffic", f"evaluation {measure}"),
            ("sent_mb", "gradient_error", "sent per rank and step (MB)", "relative error of the gradient"),
        )
        if (rows := table.filter(pl.col(x) > 0, pl.col(y) > 0)).height
    ]
    note = "Means over launches. Error: relative, of the mean gradient, where it was measured (compress.error_every)."
    return arm_figure("What fewer bytes cost", arms, table, panels, note, panel_in=4)


@figure("train", compared)
def compression_step(arms: Arms) -> Drawing:
    """What a step computes, compresses, sends and decompresses.

    What a mean step computes, compresses, communicates and decompresses, a bar per arm, and how long it lasts.
    """
    timed = {part.column: f"timed_ms.workers.{part.column}" for part in PARTS}
    lasts = pl.Series([fmean(fmean(run.measured["step_time_ms_mean"]) for run in arm.runs) for arm in arms])
    table = means(arms, {**timed, "compute_ms": "time_ms.compute"}).fill_null(0.0).with_columns(step_time_ms=lasts)
    note = (
        "Means over launches of their means over ranks and steps; diamonds: how long the step lasts. Where a strategy "
        "overlaps them, compressing and communicating run beside computing, so that the parts may be longer than the "
        "step; communicating includes waiting for other ranks."
    )
    bars = Bars(rows=table, parts=PARTS, x_label="time per step (ms)", marks="step_time_ms")
    parts = table.unpivot(index="arm", variable_name="part", value_name="ms")
    return arm_figure("What a step computes, compresses and sends", arms, parts, [bars], note)


@figure("train", several)
def compression_methods(arms: Arms) -> Drawing:
    """Speed, communication and evaluation of every method; lines span the launches.

    Bars of speed, communication's share of the time, and evaluation, an arm below the other.
    """
    measure = _perplexity_or_loss(arms)
    shown = {
        "units_per_s": (*work_rate(arms), "compute"),
        "communication_share": ("comm_ratio", "communication, share of the time", "communication"),
        measure: (f"eval.{measure}", f"evaluation {measure}", "compute"),
    }
    rows = [
        {"arm": arm.label, "quantity": name, "mean": fmean(each), "least": min(each), "most": max(each)}
        for name, (key, *_) in shown.items()
        for arm in arms
        if (each := arm.values(key))
    ]
    table, names = pl.DataFrame(rows), pl.DataFrame({"arm": [arm.label for arm in arms]})
    bars = [
        Bars(
            rows=names.join(table.filter(quantity=name), "arm", "left", maintain_order="left"),
            parts=[Part("mean", "", color)], x_label=label, ends=("least", "most"),
        )
        for name, (_, label, color) in shown.items()
        if name in table["quantity"]
    ]  # fmt: skip
    note = "Bars: means over launches; lines span the launches."
    return arm_figure("Speed, communication and evaluation of every method", arms, table, bars, note)


@figure("train", compared)
def compression_links(arms: Arms) -> Drawing | None:
    """How long a step would last over links of other speeds, predicted.

    A line per arm from slow links to fast ones, as `links.predicted_ms` has it; no arm that lacks a number of it.
    """
    known = [arm for arm in arms if predicted_ms(arm.summaries, 1) is not None]
    if not known:
        return None
    speeds = np.geomspace(SLOWEST_GBPS, max(SPEEDS_GBPS), POINTS).tolist()
    rows = []
    for arm in known:
        spans = faster_gbps(arm.summaries, arms[0].summaries) if len(known) > 1 else None
        equal = [end for span in spans or () for end in span if end and SLOWEST_GBPS <= end <= speeds[-1]]
        rows += [
            (arm.label, speed, predicted_ms(arm.summaries, speed), speed in equal)
            for speed in sorted([*speeds, *equal])
        ]
    table = pl.DataFrame(rows, ["arm", "gbps", "predicted_ms", "crosses"], orient="row")
    rings = table.filter("crosses")
    panel = Lines(
        rows=table, x="gbps", y="predicted_ms", log="xy", marked=False,
        x_label="speed of the link (Gb/s)", y_label="predicted step time (ms)",
    )  # fmt: skip
    note = "Predicted from measured steps and counted bytes: what was hidden stays hidden, what is slower is exposed."
    meaning = f"Rings: where an arm takes as long as {arms[0].label}." if rings.height else ""
    drawing = arm_figure("Steps over links of other speeds", arms, table, [panel], note, meaning, panel_in=4)
    look: dict[str, Any] = {"markersize": 7, "fillstyle": "none", "color": FAINT_INK}
    drawing.figure.axes[0].plot(rings["gbps"], rings["predicted_ms"], "o", **look)
    return drawing


@figure("train", several)
def compression_progress(arms: Arms) -> Drawing | None:
    """Evaluations over the time of the steps, and over what a rank sent."""
    measure = _perplexity_or_loss(arms)
    table = _over_launches(arms, lambda run: reached(run, measure), "steps")
    if table.is_empty():
        return None
    table = table.select(pl.exclude("arm"), "arm")
    drawn = table.with_columns(pl.col("bytes") * mb(1))
    panels = [
        Lines(rows=drawn, x=x, y=measure, x_label=label, y_label=f"evaluation {measure}", log=log)
        for x, label, log in (("time_s", "time of the steps (s)", "y"), ("bytes", "sent by a rank (MB)", "xy"))
    ]
    note = "Means over launches. The time of the steps includes the warm-up, but no evaluation."
    return arm_figure("Evaluations over time and over what was sent", arms, table, panels, note, panel_in=4)


@figure("train", compared)
def compression_curves(arms: Arms) -> Drawing:
    """Losses over the steps, and what has been kept for later.

    Training loss, evaluation loss and, where it was measured, the norm of what was left out, over the steps.
    """
    curves = {
        "training loss": ("smoothed", over_steps(arms, "loss_global")),
        "evaluation loss": ("loss", _over_launches(arms, lambda run: run.evaluations, "step")),
        "residual norm": ("residual_norm", _over_launches(arms, _residuals, "step")),
    }
    known = (
        rows.select("arm", "step", quantity=pl.lit(name), value=column)
        for name, (column, rows) in curves.items()
        if rows.height
    )
    table = pl.concat(known, how="vertical_relaxed").select("arm", "quantity", "step", "value")
    panels = [
        Lines(
            rows=rows, x="step", y="value", x_label="optimizer step", y_label=f"{name}", from_zero=False,
            marked=name != "training loss",
        )
        for (name,), rows in table.group_by("quantity", maintain_order=True)
    ]  # fmt: skip
    notes = [f"Means over launches; training loss: rolling mean over {smoothing_window(arms)} steps."]
    if len(panels) == 3:
        notes.append("Residual: 2-norm of all that was left out so far, where it was measured (compress.error_every).")
    return arm_figure("Losses, and what has not been sent yet", arms, table, panels, *notes)


def _residuals(run: MergedRun) -> pl.DataFrame:
    if "residual_norm" not in run.columns():
        return pl.DataFrame()
    return run.worker_rows().select("step", "residual_norm").drop_nulls().group_by("step").mean().collect()


def _over_launches(arms: Arms, rows_of: Callable[[MergedRun], pl.DataFrame], by: str) -> pl.DataFrame:
    """Means over an arm's launches of what they have at a step; without columns where none has anything."""
    rows = [
        found.cast(pl.Float64, strict=False).with_columns(arm=pl.lit(arm.label))
        for arm in arms
        for run in arm.runs
        if (found := rows_of(run)).height
    ]
    if not rows:
        return pl.DataFrame()
    return pl.concat(rows, how="diagonal").group_by(by, "arm").mean().sort(by).with_columns(pl.col(by).cast(pl.Int64))


@figure("train", compared)
def compression_fsdp(arms: Arms) -> Drawing:
    """Where compression sits in a step of FSDP, as a drawing.

    A schematic step of two blocks under FSDP; drawn where an arm compresses, whatever its strategy.
    """
    note = (
        "A drawing, not a measurement. Every rank holds a shard of each block's parameters, gathers the block before "
        "it computes, and frees it after. The gradient of a block is compressed on every rank (c), piece by piece for "
        "the rank that keeps it; what arrives is decompressed and averaged there (d), in place of a reduce-scatter. "
        "Parameters are gathered as they are, under compress.gather in a byte each; residuals are of the whole "
        "gradient."
    )
    title, legend = "Where compression sits in a step of FSDP", [kind.handle() for kind in KINDS]
    drawn, (axes,) = new_figure(title, note, panel_in=2.3, legend=legend)
    for start, length, lane, text, kind in BOXES:
        axes.barh(lane, length - 0.06, 0.6, left=start + 0.03, **kind.look())
        axes.text(start + length / 2, lane, text, ha="center", va="center", fontsize=9, color="white")
    axes.set(xlim=(-0.1, 9.7), ylim=(len(LANES) - 0.4, -0.6), xticks=[], xlabel="time of one rank, from left to right")
    axes.set_yticks(range(len(LANES)), LANES)
    axes.grid(visible=False)
    rows = [(LANES[lane], start, length, text) for start, length, lane, text, _ in BOXES]
    return Drawing(drawn, pl.DataFrame(rows, ["lane", "start", "length", "text"], orient="row", strict=False))
