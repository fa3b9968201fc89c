"""What compressors send, what they cost in time, and what becomes of gradients, losses and perplexity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogFormatter

from dynbench.analysis.communication import timed_ms
from dynbench.analysis.compression import compression_of
from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable
from dynbench.analysis.measures import communication_of
from dynbench.analysis.merge import PARQUET, MergedRun
from dynbench.units import mb

PARTS = (
    ("compute_ms", "compute", "#0072B2"),
    ("compress_ms", "compress", "#E69F00"),
    ("comm_ms", "communicate", "#CC79A7"),
    ("decompress_ms", "decompress", "#D55E00"),
)
"""Column, legend and colour of what compression takes of a step, in the order in which it happens."""
STEP = "step_time_ms"
UNKNOWN = "not measured: compress.error_every is 0"
"""In place of errors of gradients."""

Value = Callable[[MergedRun], float | None]


def compared(arms: Sequence[ArmView]) -> list[ArmView]:
    """The arms that can be drawn, where one of them compresses; else none."""
    shown = drawable(arms)
    return shown if any(run.facts.config.compress.name != "none" for arm in shown for run in arm.runs) else []


def of_launches(arm: ArmView, value: Value) -> list[float]:
    """What is known of an arm's launches."""
    return [found for run in arm.runs if (found := value(run)) is not None]


def worker_rows(run: MergedRun, *columns: str) -> pl.DataFrame:
    """Rows of the workers with columns that they have, in order of step; empty where one is missing."""
    if not {*columns} <= {*pl.read_parquet_schema(run.run.path / PARQUET)}:
        return pl.DataFrame(schema=dict.fromkeys(("step", *columns), pl.Float64))
    return run.worker_rows().select("step", *columns).drop_nulls().sort("step").collect()


def compression(run: MergedRun) -> float | None:
    """`compression_ratio` of its summary."""
    return _number(communication_of(run).get("compression_ratio"))


def sent_mb(run: MergedRun) -> float | None:
    """Sent by a rank in a step, MB."""
    known = run.measured["bytes_wire"].drop_nulls().to_list() if "bytes_wire" in run.measured.columns else []
    return mb(fmean(known)) if known else None


def gradient_error(run: MergedRun) -> float | None:
    """Mean relative error of the mean gradient, where it was measured."""
    found = compression_of(run)
    return None if found is None else found["grad_rel_error"]


def _number(value: object) -> float | None:
    return value if isinstance(value, float) else None


def evaluated(run: MergedRun, column: str) -> float | None:
    """A column of the last evaluation."""
    if column not in run.evaluations.columns or not run.evaluations.height:
        return None
    return float(run.evaluations[column][-1])


def perplexity_or_loss(arms: Sequence[ArmView]) -> str:
    """What all arms were evaluated by: perplexity where there is one."""
    has = all("perplexity" in run.evaluations.columns for arm in arms for run in arm.runs)
    return "perplexity" if has else "loss"


def compression_loss(arms: Sequence[ArmView]) -> style.Drawing | None:
    """How many times fewer bytes an arm sends against its evaluation, and bytes against the error of its gradients."""
    arms = compared(arms)
    measure = perplexity_or_loss(arms)
    rows = [
        {
            "arm": arm.label,
            **{
                name: fmean(found) if (found := of_launches(arm, value)) else None
                for name, value in (
                    ("compression", compression),
                    ("sent_mb", sent_mb),
                    (measure, lambda run: evaluated(run, measure)),
                    ("gradient_error", gradient_error),
                )
            },
        }
        for arm in arms
    ]
    table = pl.DataFrame(
        rows, schema_overrides=dict.fromkeys(("compression", "sent_mb", measure, "gradient_error"), pl.Float64)
    )
    if not arms or table.drop_nulls(["compression", measure]).is_empty():
        return None
    note = "Means over launches. Error: relative, of the mean gradient, where it was measured (compress.error_every)."
    figure, (left, right) = style.new_figure("What fewer bytes cost", caption(arms, note), columns=2, width_in=10)
    _scatter(left, table, "compression", measure)
    style.label_axes(left, "bytes of gradients over bytes sent", f"evaluation {measure}", from_zero=False)
    _scatter(right, table, "sent_mb", "gradient_error")
    style.label_axes(right, "sent per rank and step (MB)", "relative error of the gradient", from_zero=False)
    style.legend_of_figure(figure, left)
    return style.Drawing(figure, table)


def _scatter(axes: Axes, table: pl.DataFrame, x: str, y: str) -> None:
    known = [row for row in enumerate(table.iter_rows(named=True)) if row[1][x] and row[1][y]]
    if not known:
        axes.text(0.5, 0.5, UNKNOWN, ha="center", va="center", transform=axes.transAxes)
        return
    for index, row in known:
        look: dict[str, Any] = {
            "color": style.color(index),
            "marker": style.marker(index),
            "linestyle": "none",
            "markersize": 7,
        }
        axes.plot([row[x]], [row[y]], label=row["arm"], **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis, axes.yaxis)


def plain_ticks(*scales: Axis) -> None:
    """Numbers of logarithmic scales as they are, also between powers of ten."""
    for scale in scales:
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.5)))


def compression_step(arms: Sequence[ArmView]) -> style.Drawing | None:
    """What a mean step computes, compresses, communicates and decompresses, a bar per arm, and how long it lasts."""
    arms = compared(arms)
    if not arms:
        return None
    rows = [{"arm": arm.label, **_parts(arm)} for arm in arms]
    table = pl.DataFrame(rows)
    note = (
        "Means over ranks and steps. Where a strategy overlaps them, compressing and communicating run beside "
        "computing, so that the parts may be longer than the step; communicating includes waiting for other ranks."
    )
    figure, (axes,) = style.new_figure(
        "What a step computes, compresses and sends", caption(arms, note), width_in=9, height_in=2.2 + 0.33 * len(arms)
    )
    left = [0.0] * len(arms)
    for column, title, color in PARTS:
        ms = table[column].to_list()
        axes.barh(range(len(arms)), ms, 0.62, left=left, color=color, label=title)
        left = [start + more for start, more in zip(left, ms, strict=True)]
    axes.plot(table[STEP].to_list(), range(len(arms)), "D", color=style.INK, markersize=5, label="step")
    axes.set_yticks(range(len(arms)), [arm.label for arm in arms])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("time per step (ms)")
    axes.grid(visible=False, axis="y")
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table.unpivot(index="arm", variable_name="part", value_name="ms"))


def _parts(arm: ArmView) -> dict[str, float]:
    timed = [timed_ms(run)["workers"] for run in arm.runs]
    known = {column: fmean(each.get(column) or 0.0 for each in timed) for column, *_ in PARTS}
    return {**known, "compute_ms": fmean(arm.steps["compute_ms_mean"]), STEP: fmean(arm.steps["step_time_ms_mean"])}


def compression_methods(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Bars of speed, communication's share of the time, and evaluation, an arm below the other."""
    arms = compared(arms)
    if not arms:
        return None
    measure = perplexity_or_loss(arms)
    panels: tuple[tuple[str, str, Value], ...] = (
        ("tokens_per_s", "real tokens per second", _tokens_per_s),
        ("communication_share", "communication, part of the time", _share),
        (measure, f"evaluation {measure}", lambda run: evaluated(run, measure)),
    )
    figure, axes = style.new_figure(
        "Speed, communication and evaluation of every method",
        caption(arms, "Bars: means over launches; lines: from the least launch to the greatest."),
        columns=3,
        width_in=11,
        height_in=2.0 + 0.3 * len(arms),
        share_y=True,
    )
    rows = []
    for panel, (name, title, value) in zip(axes, panels, strict=True):
        for place, arm in enumerate(arms):
            if found := of_launches(arm, value):
                mean = fmean(found)
                panel.barh(place, mean, 0.62, color=style.color(0 if place else 2))
                panel.plot([min(found), max(found)], [place, place], color=style.INK, linewidth=1.2)
                rows.append({"arm": arm.label, "quantity": name, "mean": mean, "least": min(found), "most": max(found)})
        panel.set_xlabel(title)
        panel.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(arms)), [arm.label for arm in arms])
    axes[0].invert_yaxis()
    return style.Drawing(figure, pl.DataFrame(rows))


def _tokens_per_s(run: MergedRun) -> float | None:
    return 1000 * float(run.measured["real_tokens"].sum()) / run.time_ms if run.time_ms else None


def _share(run: MergedRun) -> float | None:
    return _number(communication_of(run).get("comm_ratio"))
