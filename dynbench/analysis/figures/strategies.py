"""Strategies at a glance: speed, time, communication and memory of every arm, and the loss of each over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.over_steps import draw_lines, smoothing_note
from dynbench.analysis.figures.views import ArmView, caption, drawable
from dynbench.analysis.measures import communication_of
from dynbench.analysis.memory import memory_parts
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.metrics import lookup
from dynbench.analysis.speedup import seconds_per_unit, unit_of

COMMUNICATION = {
    "comm_ms.mean": ("under way", "#E3C1D3"),
    "exposed_comm_ms.mean": ("exposed, after the last gradient", "#CC79A7"),
    "exposed_vs_null_ms.mean": ("exposed, beyond a step without", "#D55E00"),
}
"""Bars below each other, of an arm."""
HELD = {
    "parameters_mb": ("parameters", "#0072B2"),
    "gradients_mb": ("gradients", "#56B4E9"),
    "optimizer_mb": ("optimizer", "#009E73"),
    "strategy_mb": ("strategy", "#BBBBBB"),
}
"""Bars behind each other."""


def strategies(arms: Sequence[ArmView]) -> style.Drawing | None:
    """Four panels with a bar or several per arm; None where arms do not differ in their strategy, or send nothing."""
    arms = _differing(arms)
    if not arms:
        return None
    facts = [[_facts(run) for run in arm.runs] for arm in arms]
    note = (
        "Means over launches. Training time: the measured steps of a launch. Memory: what a rank that trains holds "
        "after the optimizer's first step, counted in tensors; left out where it was not counted."
    )
    figure, (rate, time, communication, memory) = style.new_figure(
        "Strategies at a glance",
        caption(arms, note),
        rows=2,
        columns=2,
        width_in=10,
        height_in=2.6 + 0.55 * len(arms),
        share_y=True,
    )
    table = pl.DataFrame({"arm": [arm.label for arm in arms]})
    colors = [style.color(index) for index in range(len(arms))]
    for axes, key, title in (
        (rate, "units_per_s", unit_of(arms[0].runs[0]).rate),
        (time, "training_s", "training time (s)"),
    ):
        values = _means(facts, key)
        axes.barh(range(len(arms)), values, color=colors)
        axes.set_xlabel(str(title))
        table = table.with_columns(pl.Series(key, values))
    table = table.with_columns(**_draw_communication(communication, facts), **_draw_held(memory, facts))
    for axes in (rate, communication):
        axes.set_yticks(range(len(arms)), [arm.label for arm in arms])
    rate.invert_yaxis()
    return style.Drawing(figure, table)


def loss_curves(arms: Sequence[ArmView]) -> style.Drawing | None:
    """The training loss over the measured steps, a line per arm; None where arms do not differ in their strategy."""
    arms = [arm for arm in _differing(arms) if arm.runs[0].facts.trains]
    if not arms:
        return None
    figure, (axes,) = style.new_figure("Training loss over the steps", caption(arms, smoothing_note(arms)))
    table = draw_lines(axes, arms, "loss_global")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("training loss")
    style.legend_of_figure(figure, axes)
    return style.Drawing(figure, table)


def _differing(arms: Sequence[ArmView]) -> list[ArmView]:
    """The arms that can be drawn, if they are of several strategies and say what they sent."""
    found = [arm for arm in drawable(arms) if "comm_ms" in arm.steps.columns]
    return found if len({arm.runs[0].facts.config.sync.name for arm in found}) > 1 else []


def _facts(run: MergedRun) -> dict[str, object]:
    return {
        "units_per_s": 1 / seconds_per_unit(run),
        "training_s": run.time_ms / 1000,
        "exposed_comm_ms": {"mean": run.measured["exposed_comm_ms"].mean()},
        "held": held["after_step"] if (held := memory_parts(run)) else None,
        **communication_of(run),
    }


def _means(facts: Sequence[Sequence[dict[str, object]]], key: str) -> list[float]:
    """Over launches, by arm; not a number where it is not known."""
    found = ([value for one in launches if (value := lookup(one, key)) is not None] for launches in facts)
    return [fmean(values) if values else float("nan") for values in found]


def _draw_communication(axes: Axes, facts: Sequence[Sequence[dict[str, object]]]) -> dict[str, pl.Series]:
    places, height, drawn = np.arange(len(facts)), 0.8 / len(COMMUNICATION), {}
    for index, (key, (label, color)) in enumerate(COMMUNICATION.items()):
        values = _means(facts, key)
        axes.barh(places + (index - 1) * height, values, height=height, color=color, label=label)
        drawn[key.removesuffix(".mean")] = pl.Series(values)
    axes.set_xlabel("communication per step (ms)")
    axes.legend(fontsize=7)
    return drawn


def _draw_held(axes: Axes, facts: Sequence[Sequence[dict[str, object]]]) -> dict[str, pl.Series]:
    left, drawn = np.zeros(len(facts)), {}
    if not any(one["held"] for launches in facts for one in launches):
        axes.set_axis_off()
        return {key: pl.Series([None] * len(facts), dtype=pl.Float64) for key in HELD}
    for key, (label, color) in HELD.items():
        values = np.nan_to_num(_means(facts, f"held.{key}"))
        axes.barh(range(len(facts)), values, left=left, color=color, label=label)
        left += values
        drawn[key] = pl.Series(values)
    axes.set_xlabel("held by a rank (MB)")
    axes.legend(fontsize=7)
    return drawn
