"""Arms that differ in strategy or size: strategies at a glance, the number of buckets, and the number of ranks."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.arms import seconds_per_unit, unit_of
from dynbench.analysis.buckets import EXPLAINS, bears_out, bucket_point, fit_buckets, size_of, sizes_differ
from dynbench.analysis.figures.charts import (
    DASHES,
    Bars,
    Panel,
    Part,
    bar_figure,
    draw_marks,
    handles,
    line_figure,
    looks,
    plain_ticks,
    wide,
)
from dynbench.analysis.figures.steps import of_strategies
from dynbench.analysis.figures.style import COLORS, FAINT_INK, INK, Drawing, new_figure
from dynbench.analysis.figures.views import Arms, arm_looks, caption, over_launches
from dynbench.analysis.measure import lookup
from dynbench.analysis.measures import communication_of
from dynbench.analysis.memory import memory_parts
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.run_facts import oversubscribed
from dynbench.analysis.scaling import reference_of
from dynbench.config.digest import flatten
from dynbench.units import mib

MEASURES = {
    "units_per_s": "units_per_s",
    "training_s": "training_s",
    "comm_ms": "comm_ms.mean",
    "exposed_comm_ms": "exposed_comm_ms.mean",
    "exposed_vs_null_ms": "exposed_vs_null_ms.mean",
    "parameters_mb": "held.parameters_mb",
    "gradients_mb": "held.gradients_mb",
    "optimizer_mb": "held.optimizer_mb",
    "strategy_mb": "held.strategy_mb",
}
"""Column of the table of strategies, and where it stands among an arm's facts."""
COMMUNICATION = (
    Part("exposed_comm_ms", "exposed communication", COLORS["communication"]),
    Part("hidden_ms", "hidden communication", COLORS["under way"]),
)
HELD = tuple(
    Part(f"{name}_mb", name, COLORS["other" if name == "strategy" else name])
    for name in ("parameters", "gradients", "optimizer", "strategy")
)
HEADROOM = 1.1
"""The axes end this much above what they must show."""


def strategies(arms: Arms) -> Drawing | None:
    """Panels of bars, one per arm; None where arms do not differ in their strategy, or send nothing."""
    arms = of_strategies(arms)
    if not arms:
        return None
    names = [arm.label for arm in arms]
    table = wide(over_launches(arms, _facts), "arm", names, "quantity", "mean", list(MEASURES))
    held = [part.column for part in HELD]
    counted = any(table[name].null_count() < table.height for name in held)
    table = table.with_columns(
        pl.col(held).fill_null(0.0) if counted else pl.col(held), pl.exclude("arm", *held).fill_null(nan)
    )
    drawn = table.with_columns(hidden_ms=(pl.col("comm_ms") - pl.col("exposed_comm_ms")).clip(lower_bound=0))
    bars = [
        Bars(drawn, [Part("units_per_s", "", COLORS["compute"])], str(unit_of(arms[0].runs[0]).rate)),
        Bars(drawn, [Part("training_s", "", COLORS["compute"])], "training time (s)"),
        Bars(drawn, COMMUNICATION, "communication per step (ms)", marks="exposed_vs_null_ms"),
        *([Bars(drawn, HELD, "held by a rank (MB)")] if counted else []),
    ]
    note = (
        "Means over launches. Training time: the measured steps of a launch. Diamonds: what a step takes beyond one "
        "without communication. Memory: what a rank that trains holds after the optimizer's first step, counted in "
        "tensors."
    )
    return bar_figure("Strategies at a glance", caption(arms, note), table, names, bars)


def _facts(run: MergedRun) -> dict[str, object]:
    facts = {
        "units_per_s": 1 / seconds_per_unit(run),
        "training_s": run.time_ms / 1000,
        "exposed_comm_ms": {"mean": run.measured["exposed_comm_ms"].mean()},
        "held": held["after_step"] if (held := memory_parts(run)) else None,
        **communication_of(run),
    }
    return {name: lookup(facts, key) for name, key in MEASURES.items()}


def bucket_overhead(arms: Arms) -> Drawing | None:
    """One marker per arm; where the arms bear the model out, its curve and the number of buckets at which it is least.

    Returns:
        None where arms do not have several numbers of buckets.
    """
    found = {arm: bucket_point(arm.label, flatten(arm.runs[0].facts.config), _of_buckets(arm.runs)) for arm in arms}
    points = [point for point in found.values() if point is not None]
    fit = fit_buckets(points) if sizes_differ(points) else None
    if fit is None:
        return None
    beyond = all(point.against_null for point in points)
    drawn = bears_out(points, fit)
    model = "Line: n*o + s/(n*w), fitted; it assumes that computing a bucket takes as long as sending it."
    if drawn and fit.best_bytes is not None:
        model += f" Dotted: its least, buckets of {mib(fit.best_bytes):.3g} MiB."
    elif not fit.explains:
        r_squared = "none" if fit.r_squared is None else f"{fit.r_squared:.2f}"
        model = f"No line: n*o + s/(n*w) fits too badly (R² {r_squared}; at least {EXPLAINS:g} is asked for)."
    elif not drawn:
        model = "No line: n*o + s/(n*w) assumes computing a bucket to take as long as sending it: not borne out here."
    meaning = "beyond a step without communication" if beyond else "after the last gradient"
    note = f"Overhead: {meaning}, mean over launches."
    figure, (axes,) = new_figure("Overhead over the number of buckets", caption(list(found), note, model))
    table = pl.DataFrame(
        [
            {
                "arm": point.arm,
                "buckets": point.calls,
                "overhead_ms": point.overhead_ms,
                "fitted_ms": fit.overhead_ms(point.calls) if drawn else None,
                "step_ms": point.step_ms,
            }
            for point in points
        ],
        schema_overrides={"fitted_ms": pl.Float64},
    )
    if drawn:
        curve = np.geomspace(min(table["buckets"]), max(table["buckets"]), 200)
        axes.plot(curve, [fit.overhead_ms(each) for each in curve], color=INK, linewidth=1)
        if fit.best_bytes is not None:
            axes.axvline(fit.total / fit.best_bytes, color=FAINT_INK, linestyle=":", linewidth=1.2)
    axes.set(xscale="log", xlabel="buckets per step (log scale)", ylabel="overhead per step (ms)")
    axes.margins(0.12)
    named = table.with_columns(pl.Series("name", [f"{point.arm}: {size_of(point)}" for point in points]))
    draw_marks(axes, named, "buckets", "overhead_ms", arm_looks(list(found)), "name")
    plain_ticks(axes.xaxis)
    return Drawing(figure, table)


def _of_buckets(launches: tuple[MergedRun, ...]) -> list[dict[str, object]]:
    """What a point is made of, launch by launch, as a summary has it."""
    return [
        {
            "step_time_ms": {"mean": run.measured["step_time_max_ms"].mean()},
            "exposed_comm_ms": {"mean": run.measured["exposed_comm_ms"].mean()},
            "time_ms": {"compute": run.measured["compute_ms_mean"].mean()},
            "workers": run.workers,
            **communication_of(run),
        }
        for run in launches
    ]


def scaling(arms: Arms) -> Drawing | None:
    """Work per second on the left, efficiency on the right, each arm against its strategy's with the fewest workers.

    Returns:
        None where all arms have as many workers.
    """
    if len({arm.runs[0].workers for arm in arms}) < 2:
        return None
    found = {arm.label: (arm, *against) for arm in arms if (against := reference_of(arm, arms)) is not None}
    launches = {
        label: [1 / seconds_per_unit(run) for run in arm.runs if run.measured.height]
        for label, (arm, *_) in found.items()
    }
    rates = {label: float(np.exp(np.mean(np.log(each)))) for label, each in launches.items()}
    rows: list[dict[str, Any]] = [
        {
            "arm": label,
            "strategy": arm.runs[0].facts.config.sync.name,
            "kind": kind,
            "against": first.label,
            "ranks": arm.runs[0].workers,
            "oversubscribed": bool(oversubscribed(arm.runs[0].facts)),
            "tokens_per_s": rates[label],
            "speedup": rates[label] / rates[first.label],
            "efficiency": rates[label] / rates[first.label] * first.runs[0].workers / arm.runs[0].workers,
        }
        for label, (arm, first, kind) in found.items()
    ]
    table = pl.DataFrame(rows)
    spread = [
        {"arm": label, "low": min(each) / rates[label], "high": max(each) / rates[label]}
        for label, each in launches.items()
    ]
    own = table.select("arm", "ranks", "tokens_per_s", percent=100 * pl.col("efficiency")).join(
        pl.DataFrame(spread), on="arm"
    )
    begin = table.select("arm", "against").join(own.rename({"arm": "against"}), on="against").drop("against")
    both = pl.concat([begin.select(own.columns), own])
    by_way = looks(list(dict.fromkeys(row["strategy"] for row in rows)))
    shown = {
        row["arm"]: replace(by_way[row["strategy"]], dashes=DASHES[2 if row["kind"] == "weak" else 0], width=1)
        for row in rows
    }
    panels = [
        Panel(
            rows=both.with_columns(first=pl.col(y) * pl.col("low"), last=pl.col(y) * pl.col("high")), x="ranks", y=y,
            bars=("first", "last"), x_label="ranks that train", y_label=label, top=HEADROOM * max(highest), ticks={},
        )
        for y, label, highest in (
            ("tokens_per_s", str(unit_of(arms[0].runs[0]).rate), list(map(max, launches.values()))),
            ("percent", "efficiency of the ranks (%)", [100.0, *both["percent"] * both["high"]]),
        )
    ]  # fmt: skip
    notes = (
        "Geometric mean over launches, with the least and the greatest launch. Solid: strong scaling; dotted: weak. "
        "Dashed: every rank gives what the fewest give."
    )
    drawing = line_figure(
        "Throughput and efficiency over ranks", caption([arm for arm, *_ in found.values()], notes), table, panels,
        shown, legend=handles(by_way), panel_in=3.8,
    )  # fmt: skip
    left, right = drawing.figure.axes
    left.set_xlim(0, HEADROOM * max(row["ranks"] for row in rows))
    right.set_xlim(left.get_xlim())
    right.axhline(100, color=FAINT_INK, linestyle="--", linewidth=1)
    draw_marks(left, table, "ranks", "tokens_per_s", shown)
    return drawing
