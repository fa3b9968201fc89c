"""Steps of training runs: how long they last and why, how unequal ranks are, and what is learnt."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.evaluations import epochs_of
from dynbench.analysis.figures.charts import PHASES, Bars, Panel, bar_figure, handles
from dynbench.analysis.figures.style import FAINT_INK, INK, Drawing, digits, smooth, smoothing_window
from dynbench.analysis.figures.views import Arms, ArmView, arm_figure, arm_looks, caption

HEADROOM = 1.15
"""The axis ends this much above what it must show."""
SPREADS = {
    "compute_ms": "compute time (ms)",
    "padded_tokens": "padded tokens",
    "peak_mem_mb": "peak memory (MB)",
    "step_time_ms": "step time (ms)",
}
TOGETHER = "Ranks of one process group end a step together, so step time spreads little however unequal the work is."
EPOCHS = {
    "train_loss": "training loss",
    "eval_loss": "evaluation loss",
    "eval_accuracy": "evaluation accuracy (%)",
}
BINS, POINTS = 40, 400
"""Of a histogram; of one cumulative curve."""
OUTSIDE = "The top 1 % may leave the axis."
LABELLED = 0.05
"""Parts of at least this share of the longest bar carry their number."""


def over_steps(arms: Arms, column: str) -> pl.DataFrame:
    """A column of the step tables: arm, step, its value, and `smoothed`."""
    tables = []
    for arm in arms:
        values = arm.steps[column].to_numpy().astype(np.float64)
        smoothed = smooth(values, smoothing_window(len(values)))
        tables.append(pl.DataFrame({"arm": arm.label, "step": arm.steps["step"], column: values, "smoothed": smoothed}))
    return pl.concat(tables)


def _panel(table: pl.DataFrame, raw: str, y_label: str, title: str = "", from_zero: bool = True) -> Panel:
    """Smoothed lines over the steps; from zero, single steps far above the rest are outside and flatten nothing."""
    tops = table.group_by("arm").agg(top=pl.max_horizontal(pl.quantile(raw, 0.99), pl.max("smoothed")))
    top = HEADROOM * (tops.select(pl.max("top")).item() or 0) or 1.0 if from_zero else None
    return Panel(
        rows=table, x="step", y="smoothed", raw=raw, x_label="optimizer step", y_label=y_label, title=title,
        from_zero=from_zero, top=top, marked=False, ticks={},
    )  # fmt: skip


def _smoothing(arms: Arms) -> str:
    window = smoothing_window(max(arm.steps.height for arm in arms))
    averaged = " of the mean over launches" if any(len(arm.runs) > 1 for arm in arms) else ""
    return f"Lines: rolling mean over {window} steps{averaged}; raw values faint."


def step_time(arms: Arms) -> Drawing | None:
    """How long a step lasts: the maximum over ranks, which is when a synchronous step ends."""
    table = over_steps(arms, "step_time_max_ms")
    panel = _panel(table, "step_time_max_ms", "step time, maximum over ranks (ms)")
    return arm_figure("Step time: the slowest rank of each step", arms, table, [panel], _smoothing(arms), OUTSIDE)


def rank_spread(arms: Arms) -> Drawing | None:
    """Standard deviation over ranks within a step, one panel per quantity that is known of every arm."""
    if arms[0].runs[0].workers < 2:
        return None
    tables = {
        name: over_steps(arms, f"{name}_std").select(
            pl.lit(name).alias("quantity"), "arm", "step", pl.col(f"{name}_std").alias("std_over_ranks"), "smoothed"
        )
        for name in SPREADS
        if not any(arm.steps[f"{name}_std"].null_count() for arm in arms)
    }
    panels = [
        _panel(table, "std_over_ranks", "standard deviation over ranks", SPREADS[name])
        for name, table in tables.items()
    ]
    notes = [_smoothing(arms), OUTSIDE, "" if arms[0].runs[0].facts.virtual else TOGETHER]
    table = pl.concat(tables.values())
    return arm_figure("Spread over ranks within each step", arms, table, panels, *notes, panel_in=2.8)


def loss_curves(arms: Arms) -> Drawing | None:
    """The training loss over the measured steps; None where arms do not differ in their strategy."""
    arms = [arm for arm in of_strategies(arms) if arm.runs[0].facts.trains]
    if not arms:
        return None
    table = over_steps(arms, "loss_global")
    panel = _panel(table, "loss_global", "training loss", from_zero=False)
    return arm_figure("Training loss over the steps", arms, table, [panel], _smoothing(arms))


def of_strategies(arms: Arms) -> Arms:
    """The arms, if they are of several strategies and say what they sent."""
    found = [arm for arm in arms if "comm_ms" in arm.steps.columns]
    return found if len({arm.runs[0].facts.config.sync.name for arm in found}) > 1 else []


def step_time_distribution(arms: Arms) -> Drawing | None:
    """Histogram on the left, cumulative share on the right.

    The table has a row per bin (`kind` histogram, at the bin's lower end) and per point of a cumulative curve.
    """
    values = {arm.label: arm.all_steps["step_time_max_ms"].to_numpy() for arm in arms}
    top = max(float(np.percentile(times, 99.5)) for times in values.values()) * 1.05
    edges, percents, tables = np.linspace(0, top, BINS + 1), np.linspace(0, 100, POINTS + 1), []
    for arm, times in values.items():
        share = np.histogram(np.minimum(times, top), edges)[0] / len(times)
        for kind, at, shares in (
            ("histogram", edges[:-1], 100 * share),
            ("cumulative", np.percentile(times, percents), percents),
        ):
            tables.append(pl.DataFrame({"arm": arm, "kind": kind, "step_time_ms": at, "percent": shares}))
    table = pl.concat(tables)
    panels = [
        Panel(
            rows=table.filter(kind=kind), x="step_time_ms", y="percent", x_label="step time, maximum over ranks (ms)",
            y_label=label, marked=False, stairs=kind == "histogram",
        )
        for kind, label in (("histogram", "steps (%)"), ("cumulative", "steps at most this long (%)"))
    ]  # fmt: skip
    note = "All launches pooled. Dotted: median and 95th percentile. The last bin holds everything above it."
    legend = handles(arm_looks(arms))
    drawing = arm_figure("Distribution of step time", arms, table, panels, note, legend=legend)
    histogram, cumulative = drawing.figure.axes
    histogram.set_xlim(0, top)
    cumulative.set(xlim=(0, top), ylim=(0, 102))
    for percent in (50, 95):
        cumulative.axhline(percent, color=FAINT_INK, linewidth=0.8, linestyle=":", zorder=0)
        cumulative.text(0.01 * top, percent, f"P{percent}", va="bottom", fontsize=8, color=FAINT_INK)
    return drawing


def time_breakdown(arms: Arms) -> Drawing | None:
    """Mean over ranks and steps of every phase; the bar's end is the mean step time over ranks."""
    parts = pl.DataFrame({phase.column: [fmean(arm.steps[f"{phase.column}_mean"]) for arm in arms] for phase in PHASES})
    totals = [fmean(arm.steps["step_time_ms_mean"]) for arm in arms]
    table = parts.with_columns(arm=pl.Series([arm.label for arm in arms]))
    drawing = bar_figure(
        "Where the time of a step goes",
        caption(arms, "Mean over ranks and steps; the bars end at the mean step time over ranks."),
        table.unpivot(index="arm", variable_name="phase", value_name="ms"),
        table["arm"].to_list(),
        [Bars(parts, PHASES, "time per step (ms)")],
    )
    (axes,) = drawing.figure.axes
    for place, (row, total) in enumerate(zip(parts.iter_rows(), totals, strict=True)):
        for phase, ms, end in zip(PHASES, row, np.cumsum(row), strict=True):
            if ms > LABELLED * max(totals):
                box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"} if phase.hatch else None
                color = INK if phase.hatch or phase.column == "other_ms" else "white"
                axes.text(end - ms / 2, place, digits(ms), ha="center", va="center", color=color, fontsize=9, bbox=box)
        axes.text(sum(row) + 0.01 * max(totals), place, f"{digits(total)} ms", va="center", fontweight="bold")
    axes.set_xlim(0, max(totals) * 1.12)
    return drawing


def epochs(arms: Arms) -> Drawing | None:
    """Means over launches; what no arm was evaluated for has no panel; None where no arm was trained for epochs."""
    rows = [row for arm in arms for row in _epochs_of_arm(arm)]
    shown = [name for name in EPOCHS if any(row[name] is not None for row in rows)]
    if not shown:
        return None
    table = pl.DataFrame(rows)
    drawn = table.with_columns(pl.col("eval_accuracy").cast(pl.Float64) * 100)
    panels = [
        Panel(
            rows=drawn, x="epoch", y=name, x_label="epoch", y_label=EPOCHS[name], from_zero=name == "eval_accuracy",
            ticks={},
        )
        for name in shown
    ]  # fmt: skip
    return arm_figure("Loss and accuracy over epochs", arms, table, panels, "Means over launches.")


def _epochs_of_arm(arm: ArmView) -> list[dict[str, Any]]:
    """The epochs that all its launches have."""
    launches: list[Any] = [found["each"] for run in arm.runs if (found := epochs_of(run)) is not None]
    return [
        {"arm": arm.label, "epoch": together[0]["epoch"]}
        | {name: pl.Series([one[name] for one in together], dtype=pl.Float64).mean() for name in EPOCHS}
        for together in zip(*launches, strict=False)
    ]
