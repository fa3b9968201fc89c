"""Steps of training runs: how long they last and why, how unequal ranks are, and what is learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.arms import unit_of
from dynbench.analysis.figures.charts import FAINT_INK, PHASES, Bars, Drawing, Lines, Part, digits, figure
from dynbench.analysis.figures.views import Arms, ArmView, arm_figure, means
from dynbench.analysis.measure import total
from dynbench.analysis.steps import CODING
from dynbench.analysis.waste import ms_per_kilotoken

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
MOST_PANELS = 4
"""Candidates of which a waterfall is drawn."""
CHANGES: Mapping[str, str] = {
    "padding": "padding",
    "waiting": "waiting",
    "exposed_comm": "communication",
    "compression": "compression",
    "planning": "planning",
    "data": "data",
    "compute": "slower compute",
    "other": "other",
}
"""A change's part and what its line is called, from top to bottom; those of `SELDOM` only where an arm has any."""
SELDOM = ("compression", "compute")
FROM_TO = (
    Part("before", "", "nothing"),
    Part("ideal", "ideal", "compute"),
    Part("lost", "lost", "other"),
    Part("gain", "recovered", "gain"),
    Part("loss", "costs more", "loss"),
)
"""Of a waterfall's bars."""
ROOM, LONGEST = 1.9, 30
"""How many times as far out as the longest bar the axis ends, so that its number has room; letters of a name."""
Times = Mapping[str, float]
"""The total, the ideal and the keys of `CHANGES`, ms per 1,000 units of work."""


def smoothing_window(arms: Arms) -> int:
    """Steps that one smoothed value covers: about a twelfth of the longest arm's, odd, at least 5."""
    return max(5, max(arm.steps.height for arm in arms) // 12) | 1


def over_steps(arms: Arms, column: str, name: str = "") -> pl.DataFrame:
    """A column of the step tables: arm, step, its value under its name or another, and `smoothed`."""
    value = pl.col(column).cast(pl.Float64)
    return pl.concat(
        arm.steps.select(
            pl.lit(arm.label).alias("arm"), "step", value.alias(name or column),
            smoothed=value.rolling_mean(smoothing_window([arm]), min_samples=1, center=True),
        )
        for arm in arms
    )  # fmt: skip


def _panel(table: pl.DataFrame, raw: str, y_label: str, title: str = "", from_zero: bool = True) -> Lines:
    """Smoothed lines over the steps; from zero, single steps far above the rest are outside and flatten nothing."""
    tops = table.group_by("arm").agg(top=pl.max_horizontal(pl.quantile(raw, 0.99), pl.max("smoothed")))
    top = HEADROOM * (tops.select(pl.max("top")).item() or 0) or 1.0 if from_zero else None
    return Lines(
        rows=table, x="step", y="smoothed", raw=raw, x_label="optimizer step", y_label=y_label, title=title,
        from_zero=from_zero, top=top, marked=False,
    )  # fmt: skip


def _smoothing(arms: Arms) -> str:
    averaged = " of the mean over launches" if any(len(arm.runs) > 1 for arm in arms) else ""
    return f"Lines: rolling mean over {smoothing_window(arms)} steps{averaged}; raw values faint."


def of_strategies(arms: Arms) -> Arms | None:
    """The arms, if they are of several strategies and say what they sent."""
    found = [arm for arm in arms if "comm_ms" in arm.steps.columns]
    return found if len({arm.runs[0].facts.config.sync.name for arm in found}) > 1 else None


@figure("train")
def step_time(arms: Arms) -> Drawing:
    """Step time, the maximum over ranks, step by step; smoothed, with the raw values faintly behind."""
    table = over_steps(arms, "step_time_max_ms")
    panel = _panel(table, "step_time_max_ms", "step time, maximum over ranks (ms)")
    return arm_figure("Step time: the slowest rank of each step", arms, table, [panel], _smoothing(arms), OUTSIDE)


@figure("train", lambda arms: arms if arms[0].runs[0].workers > 1 else None)
def rank_spread(arms: Arms) -> Drawing:
    """How unequal the ranks are, step by step, as standard deviations over the ranks.

    Standard deviation over ranks within a step, one panel per quantity that is known of every arm.
    """
    tables = {
        name: over_steps(arms, f"{name}_std", "std_over_ranks").select(pl.lit(name).alias("quantity"), pl.all())
        for name in SPREADS
        if not any(arm.steps[f"{name}_std"].null_count() for arm in arms)
    }
    label = "standard deviation over ranks"
    unequal = {name: table for name, table in tables.items() if table["std_over_ranks"].max()} or tables
    panels = [_panel(table, "std_over_ranks", label, SPREADS[name]) for name, table in unequal.items()]
    notes = [_smoothing(arms), OUTSIDE, "" if arms[0].runs[0].facts.virtual else TOGETHER]
    table = pl.concat(tables.values())
    return arm_figure("Spread over ranks within each step", arms, table, panels, *notes, panel_in=2.8)


@figure("train")
def step_time_distribution(arms: Arms) -> Drawing:
    """Distribution of the step time, maximum over ranks.

    Histogram on the left, cumulative share on the right.

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
        Lines(
            rows=table.filter(kind=kind), x="step_time_ms", y="percent", x_label="step time, maximum over ranks (ms)",
            y_label=label, marked=False, stairs=kind == "histogram",
        )
        for kind, label in (("histogram", "steps (%)"), ("cumulative", "steps at most this long (%)"))
    ]  # fmt: skip
    note = "All launches pooled. The last bin holds everything above it."
    drawing = arm_figure("Distribution of step time", arms, table, panels, note)
    for axes in drawing.figure.axes:
        axes.set_xlim(0, top)
    drawing.figure.axes[1].set_yticks([0, 25, 50, 75, 95])
    return drawing


@figure("train")
def time_breakdown(arms: Arms) -> Drawing:
    """Where the time goes, stacked per arm.

    Mean over ranks and steps of every phase; the bar's end is the mean step time over ranks.
    """
    rows = means(arms, {phase.column: f"time_ms.{phase.column.removesuffix('_ms')}" for phase in PHASES})
    lasts = rows.drop("arm").sum_horizontal()
    drawn = rows.with_columns(text=pl.Series([f"{digits(ms)} ms" for ms in lasts]))
    note = "Means over launches of their means over ranks and steps; the bars end at the mean step time over ranks."
    x_label, x_end = "time per step (ms)", 1.12 * max(lasts)
    bars = Bars(rows=drawn, parts=PHASES, x_label=x_label, texts="text", numbers=True, x_end=x_end)
    table = rows.unpivot(index="arm", variable_name="phase", value_name="ms")
    return arm_figure("Where the time of a step goes", arms, table, [bars], note)


@figure("train")
def waterfall(arms: Arms) -> Drawing | None:
    """What a step of the baseline loses, and what the candidates recovered of it.

    From the baseline's step to a candidate's: what each part of the waste gave back, and what is left to the ideal.

    A panel per candidate, of the fastest first, at most `MOST_PANELS`; None with a single arm, or where no ideal can be
    stated for the baseline or any candidate.
    """
    known = {arm: times for arm in arms if (times := _times(arm)) is not None}
    if arms[0] not in known or len(known) < 2:
        return None
    base, *fastest = sorted(known, key=lambda arm: (arm is not arms[0], known[arm]["total"]))
    before, candidates = known[base], fastest[:MOST_PANELS]
    parts = [part for part in CHANGES if part not in SELDOM or any(known[arm][part] for arm in (base, *candidates))]
    table = pl.DataFrame(
        {"arm": arm.label, "part": part, "ms": known[arm][part], "change_ms": known[arm][part] - before[part]}
        for arm in (base, *candidates)
        for part in (*parts, "ideal", "total")
    )
    changes = {arm: _changes(_short(base.label), before, known[arm], parts) for arm in candidates}
    note = (
        "Mean over launches. Ideal: the same samples without padding, waiting, communication, planning or loading, by "
        "the cost of the arm that computes fastest. Slower compute: what an arm's own cost is above it."
    )
    more = f"Of {len(fastest)} candidates, the {MOST_PANELS} fastest." if len(fastest) > MOST_PANELS else ""
    x_label = f"time per 1,000 {unit_of(base.runs[0]).name}s (ms)"
    x_end = ROOM * max(max(rows["end"]) for rows in changes.values())
    bars = [
        Bars(rows=rows, parts=FROM_TO, x_label=x_label, title=_short(arm.label), texts="text", x_end=x_end)
        for arm, rows in changes.items()
    ]
    title = f"What {_short(base.label)} loses in a step, and what was recovered"
    drawing = arm_figure(title, [base, *candidates], table, bars, note, more)
    for axes, rows in zip(drawing.figure.axes, changes.values(), strict=True):
        places = np.arange(rows.height - 1)
        axes.vlines(rows["end"][:-1], places + 0.34, places + 0.66, color=FAINT_INK, linewidth=0.8)
    return drawing


def _changes(base: str, before: Times, times: Times, parts: Sequence[str]) -> pl.DataFrame:
    """A bar of the baseline, one of each change, and one of the candidate; `end`: where a change ends."""
    decimals = max(0, 2 - math.floor(math.log10(before["total"])))

    def whole(name: str, arm: Times) -> dict[str, Any]:
        text = f"{arm['total']:.{decimals}f} ms, {arm['total'] / arm['ideal']:.2f} × ideal"
        lost = arm["total"] - arm["ideal"]
        return {"name": name, "ideal": arm["ideal"], "lost": lost, "end": arm["total"], "text": text}

    rows = [whole(base, before)]
    for part in parts:
        start, change = rows[-1]["end"], times[part] - before[part]
        text = f"{change:+.{decimals}f}".replace("-", "\N{MINUS SIGN}")
        text = text if text.strip("+\N{MINUS SIGN}0.") else "0"
        bar = {"before": min(start, start + change), "loss" if change > 0 else "gain": abs(change)}
        rows.append({"name": CHANGES[part], **bar, "end": start + change, "text": text})
    return pl.DataFrame([*rows, whole("candidate", times)], infer_schema_length=None)


def _times(arm: ArmView) -> Times | None:
    """Means over launches; None where one has none.

    Compression has that part of the exposed communication which it has of both, hidden or not.
    """
    launches = []
    for run, summary in zip(arm.runs, arm.summaries, strict=True):
        found = ms_per_kilotoken(summary)
        if found is None:
            return None
        *coding, moving = (total(run.measured, name) or 0.0 for name in (*CODING, "comm_ms"))
        compression = found["exposed_comm"] * (sum(coding) / (sum(coding) + moving) if any(coding) else 0.0)
        found |= {"exposed_comm": found["exposed_comm"] - compression, "compression": compression}
        launches.append({**found, "total": sum(found.values())})
    return {part: fmean(launch[part] for launch in launches) for part in launches[0]}


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


@figure("train")
def epochs(arms: Arms) -> Drawing | None:
    """Loss and accuracy after each epoch.

    Means over launches, of epochs that all of them have; what no arm was evaluated for has no panel.

    None where no arm was trained for epochs.
    """
    found: list[tuple[str, Any]] = [(arm.label, each["epochs"]) for arm in arms for each in arm.summaries]
    rows = [{"arm": label, **row} for label, trained in found if trained is not None for row in trained["each"]]
    schema = {"arm": pl.String, "epoch": pl.Int64, **dict.fromkeys(EPOCHS, pl.Float64)}
    launches = pl.DataFrame({"arm": [label for label, _ in found]}).group_by("arm").len("launches")
    by_epoch = pl.DataFrame(rows, schema).group_by("arm", "epoch", maintain_order=True)
    table = by_epoch.agg(pl.all().mean(), pl.len().alias("found")).join(launches, "arm", maintain_order="left")
    table = table.filter(pl.col("found") == pl.col("launches")).drop("found", "launches")
    drawn = table.with_columns(pl.col("eval_accuracy") * 100)
    panels = [
        Lines(rows=drawn, x="epoch", y=name, x_label="epoch", y_label=label, from_zero=name == "eval_accuracy")
        for name, label in EPOCHS.items()
        if table[name].count()
    ]
    note = "Means over launches."
    return arm_figure("Loss and accuracy over epochs", arms, table, panels, note) if panels else None


@figure("train", of_strategies)
def loss_curves(arms: Arms) -> Drawing | None:
    """Training loss over the steps, a line per strategy.

    The training loss over the measured steps; None where arms do not differ in their strategy.
    """
    arms = [arm for arm in arms if arm.runs[0].facts.trains]
    if not arms:
        return None
    table = over_steps(arms, "loss_global")
    panel = _panel(table, "loss_global", "training loss", from_zero=False)
    return arm_figure("Training loss over the steps", arms, table, [panel], _smoothing(arms))
