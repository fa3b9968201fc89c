"""What compressors send, what they cost in time, and what becomes of gradients, losses and perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import polars as pl

from dynbench.analysis.arms import seconds_per_unit
from dynbench.analysis.communication import compression_of, timed_ms
from dynbench.analysis.evaluations import reached
from dynbench.analysis.figures.charts import Bars, Panel, Part, bar_figure, draw_marks, plain_ticks, wide
from dynbench.analysis.figures.steps import over_steps
from dynbench.analysis.figures.style import COLORS, FAINT_INK, Drawing, new_figure, smoothing_window
from dynbench.analysis.figures.views import Arms, ArmView, arm_figure, arm_looks, caption, over_launches
from dynbench.analysis.links import SPEEDS_GBPS, faster_gbps, predicted_ms
from dynbench.analysis.measures import communication_of
from dynbench.analysis.merge import PARQUET, MergedRun
from dynbench.units import mb

PARTS = (
    Part("compute_ms", "compute", COLORS["compute"]),
    Part("compress_ms", "compress", COLORS["compress"]),
    Part("comm_ms", "communicate", COLORS["communication"]),
    Part("decompress_ms", "decompress", COLORS["decompress"]),
)
"""What compression takes of a step, in the order in which it happens."""
STEP = "step_time_ms"
SLOWEST_GBPS, POINTS = 0.1, 60
"""Where the curves over links begin, and how many points each has."""
KINDS = {
    COLORS["parameters"]: "all-gather of parameters",
    COLORS["compute"]: "compute",
    COLORS["compress"]: "compress, decompress",
    COLORS["communication"]: "what was compressed, on its way",
    COLORS["optimizer"]: "optimizer on the rank's shard",
}
GATHER, COMPUTE, CODE, SEND, UPDATE = KINDS
LANES = ("parameters", "forward and backward", "gradients")
"""Streams of one rank, from top to bottom: what is in different ones runs at the same time."""
BOXES: tuple[tuple[float, float, int, str, str], ...] = (
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


def compared(arms: Arms) -> Arms:
    """The arms, where one of them compresses; else none."""
    return arms if any(run.facts.config.compress.name != "none" for arm in arms for run in arm.runs) else []


def _sent_mb(run: MergedRun) -> float | None:
    """Sent by a rank in a step."""
    known = run.measured["bytes_wire"].drop_nulls().to_list() if "bytes_wire" in run.measured.columns else []
    return mb(fmean(known)) if known else None


def _evaluated(run: MergedRun, column: str) -> float | None:
    """A column of the last evaluation."""
    known = run.evaluations.height and column in run.evaluations.columns
    return float(run.evaluations[column][-1]) if known else None


def _perplexity_or_loss(arms: Arms) -> str:
    """What all arms were evaluated by: perplexity where there is one."""
    has = all("perplexity" in run.evaluations.columns for arm in arms for run in arm.runs)
    return "perplexity" if has else "loss"


def compression_loss(arms: Arms) -> Drawing | None:
    """How many times fewer bytes an arm sends against its evaluation, and bytes against the error of its gradients."""
    arms = compared(arms)
    measure = _perplexity_or_loss(arms)
    found = over_launches(
        arms,
        lambda run: {
            "compression": communication_of(run).get("compression_ratio"),
            "sent_mb": _sent_mb(run),
            measure: _evaluated(run, measure),
            "gradient_error": found["grad_rel_error"] if (found := compression_of(run)) else None,
        },
    )
    columns = ("compression", "sent_mb", measure, "gradient_error")
    table = wide(found, "arm", [arm.label for arm in arms], "quantity", "mean", columns)
    if table.drop_nulls(["compression", measure]).is_empty():
        return None
    pairs = {
        ("compression", measure): ("bytes of gradients over bytes sent", f"evaluation {measure}"),
        ("sent_mb", "gradient_error"): ("sent per rank and step (MB)", "relative error of the gradient"),
    }
    points = {(x, y): each for x, y in pairs if (each := table.filter(pl.col(x) > 0, pl.col(y) > 0)).height}
    note = "Means over launches. Error: relative, of the mean gradient, where it was measured (compress.error_every)."
    figure, grid = new_figure(
        "What fewer bytes cost", caption(arms, note), panels=len(points), columns=len(points), width_in=11, panel_in=4
    )
    for axes, ((x, y), rows) in zip(grid, points.items(), strict=True):
        axes.set(xscale="log", yscale="log", xlabel=pairs[x, y][0], ylabel=pairs[x, y][1])
        axes.margins(0.12)
        draw_marks(axes, rows, x, y, arm_looks(arms))
        plain_ticks(axes.xaxis, axes.yaxis)
    return Drawing(figure, table)


def compression_step(arms: Arms) -> Drawing | None:
    """What a mean step computes, compresses, communicates and decompresses, a bar per arm, and how long it lasts."""
    arms = compared(arms)
    if not arms:
        return None
    table = pl.DataFrame([{"arm": arm.label, **_parts(arm)} for arm in arms])
    note = (
        "Means over ranks and steps; diamonds: how long the step lasts. Where a strategy overlaps them, compressing "
        "and communicating run beside computing, so that the parts may be longer than the step; communicating includes "
        "waiting for other ranks."
    )
    return bar_figure(
        "What a step computes, compresses and sends", caption(arms, note),
        table.unpivot(index="arm", variable_name="part", value_name="ms"), table["arm"].to_list(),
        [Bars(table, PARTS, "time per step (ms)", marks=STEP)],
    )  # fmt: skip


def _parts(arm: ArmView) -> dict[str, float]:
    timed = [timed_ms(run)["workers"] for run in arm.runs]
    known = {part.column: fmean(each.get(part.column) or 0.0 for each in timed) for part in PARTS}
    return {**known, "compute_ms": fmean(arm.steps["compute_ms_mean"]), STEP: fmean(arm.steps["step_time_ms_mean"])}


def compression_methods(arms: Arms) -> Drawing | None:
    """Bars of speed, communication's share of the time, and evaluation, an arm below the other."""
    arms = compared(arms)
    if not arms:
        return None
    measure, names = _perplexity_or_loss(arms), [arm.label for arm in arms]
    table = over_launches(
        arms,
        lambda run: {
            "tokens_per_s": 1 / seconds_per_unit(run) if run.time_ms else None,
            "communication_share": communication_of(run).get("comm_ratio"),
            measure: _evaluated(run, measure),
        },
    )
    shown = {
        "tokens_per_s": ("real tokens per second", "compute"),
        "communication_share": ("communication, part of the time", "communication"),
        measure: (f"evaluation {measure}", "compute"),
    }
    bars = [
        Bars(rows, [Part("mean", "", COLORS[color])], label, ends=("least", "most"))
        for name, (label, color) in shown.items()
        for rows in [
            pl.DataFrame({"arm": names}).join(table.filter(quantity=name), "arm", "left", maintain_order="left")
        ]
        if name in table["quantity"]
    ]
    note = "Bars: means over launches; lines: from the least launch to the greatest."
    title = "Speed, communication and evaluation of every method"
    table = table.select("arm", "quantity", "mean", "least", "most")
    return bar_figure(title, caption(arms, note), table, names, bars, columns=3)


def compression_links(arms: Arms) -> Drawing | None:
    """A line per arm from slow links to fast ones, as `links.predicted_ms` has it; no arm that lacks a number of it."""
    shown = compared(arms)
    launches = {arm.label: [_summary(run) for run in arm.runs] for arm in shown}
    known = {label: each for label, each in launches.items() if predicted_ms(each, 1) is not None}
    if not known:
        return None
    baseline = next(iter(launches))
    speeds = np.geomspace(SLOWEST_GBPS, max(SPEEDS_GBPS), POINTS).tolist()
    rows = []
    for label, summaries in known.items():
        spans = faster_gbps(summaries, launches[baseline]) if len(known) > 1 else None
        equal = [end for span in spans or () for end in span if end and SLOWEST_GBPS <= end <= speeds[-1]]
        rows += [
            {"arm": label, "gbps": speed, "predicted_ms": predicted_ms(summaries, speed), "crosses": speed in equal}
            for speed in sorted([*speeds, *equal])
        ]
    table = pl.DataFrame(rows)
    rings = table.filter("crosses")
    note = "Predicted from measured steps and counted bytes: what was hidden stays hidden, what is slower is exposed."
    panel = Panel(
        rows=table, x="gbps", y="predicted_ms", log="xy", marked=False,
        x_label="speed of the link (Gb/s)", y_label="predicted step time (ms)",
    )  # fmt: skip
    meaning = f"Rings: as long as {baseline}." if rings.height else ""
    drawing = arm_figure("Steps over links of other speeds", shown, table, [panel], note, meaning, panel_in=4)
    drawing.figure.axes[0].plot(
        rings["gbps"], rings["predicted_ms"], "o", markersize=7, fillstyle="none", color=FAINT_INK
    )
    return drawing


def _summary(run: MergedRun) -> dict[str, object]:
    """What a prediction reads of a run's summary."""
    return {**communication_of(run), "step_time_ms": {"mean": fmean(run.measured["step_time_max_ms"])}}


def compression_progress(arms: Arms) -> Drawing | None:
    """Evaluations against the time of the steps before them, and against what a rank had sent by then."""
    arms = compared(arms)
    measure = _perplexity_or_loss(arms)
    tables = [
        table.with_columns(arm=pl.lit(arm.label))
        for arm in arms
        if (table := _over_launches([reached(run, measure) for run in arm.runs], "steps")).height
    ]
    if not tables:
        return None
    table = pl.concat(tables)
    drawn = table.with_columns(pl.col("bytes") * mb(1))
    axes = {"time_s": ("time of the steps (s)", "y"), "bytes": ("sent by a rank (MB)", "xy")}
    panels = [
        Panel(rows=drawn, x=x, y=measure, x_label=label, y_label=f"evaluation {measure}", log=log)
        for x, (label, log) in axes.items()
    ]
    note = "Means over launches. Time of the steps, warm-up among them; evaluation is off this clock."
    return arm_figure("Evaluations over time and over what was sent", arms, table, panels, note, panel_in=4)


def compression_curves(arms: Arms) -> Drawing | None:
    """Training loss, evaluation loss and, where it was measured, the norm of what was left out, over the steps."""
    arms = compared(arms)
    if not arms:
        return None
    losses = (
        over_steps(arms, "loss_global").rename({"smoothed": "value"}).with_columns(quantity=pl.lit("training loss"))
    )
    tables = [losses]
    for arm in arms:
        evaluations = [run.evaluations.select("step", "loss") for run in arm.runs if run.evaluations.height]
        tables += [
            found.rename({value: "value"}).with_columns(arm=pl.lit(arm.label), quantity=pl.lit(name))
            for name, value, found in (
                ("evaluation loss", "loss", _over_launches(evaluations)),
                ("residual norm", "residual_norm", _over_launches([_residual(run) for run in arm.runs])),
            )
            if found.height
        ]
    table = pl.concat([each.select("arm", "quantity", "step", "value") for each in tables], how="vertical_relaxed")
    panels = [
        Panel(
            rows=rows, x="step", y="value", x_label="optimizer step", y_label=name, from_zero=False,
            marked=name != "training loss", ticks={},
        )
        for name in ("training loss", "evaluation loss", "residual norm")
        if (rows := table.filter(quantity=name)).height
    ]  # fmt: skip
    window = smoothing_window(max(arm.steps.height for arm in arms))
    notes = [f"Means over launches; training loss: rolling mean over {window} steps."]
    if len(panels) == 3:
        notes.append("Residual: 2-norm of all that was left out so far, where it was measured (compress.error_every).")
    return arm_figure("Losses, and what has not been sent yet", arms, table, panels, *notes)


def _residual(run: MergedRun) -> pl.DataFrame:
    columns = ("step", "residual_norm")
    if columns[1] not in pl.read_parquet_schema(run.run.path / PARQUET):
        return pl.DataFrame()
    return run.worker_rows().select(columns).drop_nulls().group_by("step").mean().collect()


def _over_launches(tables: Sequence[pl.DataFrame], by: str = "step") -> pl.DataFrame:
    """Means over launches of what they have of a step."""
    found = [table.cast(pl.Float64, strict=False) for table in tables if table.height]
    return pl.concat(found).group_by(by).mean().sort(by) if found else pl.DataFrame()


def compression_fsdp(arms: Arms) -> Drawing | None:
    """A schematic step of two blocks under FSDP; drawn where an arm compresses, whatever its strategy."""
    if not compared(arms):
        return None
    note = (
        "A drawing, not a measurement. Every rank holds a shard of each block's parameters, gathers the block before "
        "it computes, and frees it after. The gradient of a block is compressed on every rank (c), piece by piece for "
        "the rank that keeps it; what arrives is decompressed and averaged there (d), in place of a reduce-scatter. "
        "Gathered parameters are not compressed; residuals are of the whole gradient."
    )
    figure, (axes,) = new_figure(
        "Where compression sits in a step of FSDP", note, panel_in=2.3,
        legend=[Part("", name, color).handle() for color, name in KINDS.items()],
    )  # fmt: skip
    for start, length, lane, text, kind in BOXES:
        axes.barh(lane, length - 0.06, 0.6, left=start + 0.03, color=kind)
        axes.text(start + length / 2, lane, text, ha="center", va="center", fontsize=9, color="white")
    axes.set(xlim=(-0.1, 9.7), ylim=(len(LANES) - 0.4, -0.6), xticks=[], xlabel="time of one rank, from left to right")
    axes.set_yticks(range(len(LANES)), LANES)
    axes.grid(visible=False)
    rows = [{"lane": LANES[lane], "start": s, "length": length, "text": text} for s, length, lane, text, _ in BOXES]
    return Drawing(figure, pl.DataFrame(rows, strict=False))
