"""Arms that differ in strategy or size: strategies at a glance, the number of buckets, and the number of ranks."""

from __future__ import annotations

from math import nan
from statistics import geometric_mean
from typing import Any, cast

import polars as pl

from dynbench.analysis.buckets import bucket_point, fit_buckets, size_of
from dynbench.analysis.figures.charts import (
    FAINT_INK,
    INK,
    Bars,
    Drawing,
    Lines,
    Part,
    draw_panels,
    figure,
    handles,
    looks,
)
from dynbench.analysis.figures.steps import of_strategies
from dynbench.analysis.figures.views import Arms, arm_figure, caption, means, work_rate
from dynbench.analysis.measure import Summaries
from dynbench.analysis.rank_files import Operation
from dynbench.analysis.run_facts import oversubscribed
from dynbench.analysis.scaling import reference_of
from dynbench.config.schema import flatten
from dynbench.units import mib

HELD = tuple(
    Part(f"{name}_mb", name, "other" if name == "strategy" else name)
    for name in ("parameters", "gradients", "optimizer", "strategy")
)
COMMUNICATION = (
    Part("exposed_comm_ms", "exposed communication", "communication"),
    Part("hidden_ms", "hidden communication", "under way"),
)


@figure("train", of_strategies)
def strategies(arms: Arms) -> Drawing:
    """Speed, time, communication and memory of every strategy.

    Panels of bars, one per arm; None where arms do not differ in their strategy, or send nothing.
    """
    memory = [part.column for part in HELD]
    rate, in_words = work_rate(arms)
    keys = {"units_per_s": rate, "training_s": "step_time_ms.total"}
    keys |= {name: f"{name}.mean" for name in ("comm_ms", "exposed_comm_ms", "exposed_vs_null_ms")}
    table = means(arms, keys | {name: f"memory_parts.after_step.{name}" for name in memory})
    counted = any(table[name].count() for name in memory)
    table = table.with_columns(
        pl.col(memory).fill_null(0.0) if counted else pl.col(memory), pl.exclude("arm", *memory).fill_null(nan)
    ).with_columns(pl.col("training_s") / 1000)
    drawn = table.with_columns(hidden_ms=(pl.col("comm_ms") - pl.col("exposed_comm_ms")).clip(lower_bound=0))
    panels = {
        in_words: [Part("units_per_s", "", "compute")],
        "training time (s)": [Part("training_s", "", "compute")],
        "communication per step (ms)": COMMUNICATION,
        "held by a rank (MB)": HELD if counted else (),
    }
    bars = [
        Bars(rows=drawn, parts=parts, x_label=label, marks="exposed_vs_null_ms" if parts is COMMUNICATION else "")
        for label, parts in panels.items()
        if parts
    ]
    marked = table["exposed_vs_null_ms"].is_not_nan().any()
    notes = (
        "Means over launches. Training time: the measured steps of a launch.",
        "Diamonds: what a step takes beyond one without communication." if marked else "",
        "Memory: what a rank that trains holds after the optimizer's first step, in tensors." if counted else "",
    )
    return arm_figure("Strategies at a glance", arms, table, bars, *notes)


MESSAGES = (
    Part("push", "push", "communication"),
    Part("pull", "pull", "decompress"),
    Part("collectives", "collectives", "under way"),
    Part("wait", "waiting in them", "wait"),
)
"""Of a worker's communication: what it transfers to a server, from it, or among all ranks, and waiting for others."""
_PART_OF = {"send": "push", "receive": "pull"}


@figure("train", lambda arms: arms if any(arm.runs[0].facts.servers for arm in arms) else None)
def messages(arms: Arms) -> Drawing | None:
    """Training time, throughput, and how a worker's communication divides into push, pull and waiting.

    Bars of training time, throughput and a worker's communication by kind, an arm below the other.

    Returns:
        None where no arm has a server, or calls were not kept.
    """
    rate, in_words = work_rate(arms)
    table = means(arms, {"units_per_s": rate, "training_s": "step_time_ms.total"})
    step_ms = means(arms, {"step_ms": "step_time_ms.mean"})["step_ms"]
    shares = [_shares(arm.summaries, ms) for arm, ms in zip(arms, step_ms, strict=True)]
    if not any(shares):
        return None
    parts = pl.DataFrame(shares, dict.fromkeys((part.column for part in MESSAGES), pl.Float64))
    table = pl.concat([table.with_columns(pl.col("training_s") / 1000), parts.fill_null(0.0)], how="horizontal")
    panels = {
        "training time (s)": [Part("training_s", "", "compute")],
        in_words: [Part("units_per_s", "", "compute")],
        "a worker's communication (% of the step)": MESSAGES,
    }
    bars = [Bars(rows=table, parts=shown, x_label=label) for label, shown in panels.items()]
    note = (
        "Means over launches. Training time: the measured steps of a launch. Push and pull: transfers to the server "
        "and from it; waiting: until the last rank had called. Communication beside computing counts, too."
    )
    return arm_figure("Training time, throughput and messages", arms, table, bars, note)


def _shares(summaries: Summaries, step_ms: float | None) -> dict[str, float]:
    """Parts of a worker's communication in percent of the step, means over launches; empty where they are not known."""
    known = [cast(list[Operation], found) for each in summaries if (found := each.get("by_operation"))]
    shares = dict.fromkeys((part.column for part in MESSAGES), 0.0)
    for operation in (line for lines in known for line in lines if line["side"] == "worker"):
        if operation["wait_ms"] is None or operation["transfer_ms"] is None:
            return {}
        share = 100 / (step_ms or nan) / len(known)
        shares[_PART_OF.get(operation["operation"], "collectives")] += operation["transfer_ms"] * share
        shares["wait"] += operation["wait_ms"] * share
    return shares if known else {}


@figure("train")
def bucket_steps(arms: Arms) -> Drawing | None:
    """Step time over the number of buckets; the line is the model, fitted to the arms without a ring.

    One marker per arm, ringed where it is left out of the fit, what the model predicts, and its best number.

    Returns:
        None where arms do not have several numbers of buckets.
    """
    points = {arm: bucket_point(arm.label, flatten(arm.runs[0].facts.config), arm.summaries) for arm in arms}
    found = {arm: point for arm, point in points.items() if point is not None}
    fit = fit_buckets([*found.values()])
    if fit is None:
        return None
    known = [*found.values()]
    predicted = pl.Series("predicted_ms", [fit.step_ms(each) for each in known])
    held_out = pl.Series("held_out", [each in fit.held_out for each in known])
    table = pl.DataFrame(known).select("arm", pl.col("calls").alias("buckets"), "step_ms", predicted, held_out)
    named = table.with_columns(pl.Series("name", [f"{each.arm}: {size_of(each)}" for each in known]))
    panel = Lines(
        rows=named, x="buckets", y="step_ms", x_label="buckets per step (log scale)", log="x", names="name",
        y_label="step (ms)", from_zero=False,
    )  # fmt: skip
    title = "Step over the number of buckets"
    model = f"Line: the model, fitted to the arms without a ring; it misses the others by up to {fit.worst:.1%}."
    best = "" if fit.best_bytes is None else f"Dotted: its least, buckets of {mib(fit.best_bytes):.3g} MiB."
    drawing = arm_figure(title, [*found], table, [panel], "Means over launches.", model, best)
    (axes,) = drawing.figure.axes
    line = table.sort("buckets")
    axes.plot(line["buckets"], line["predicted_ms"], color=INK, linewidth=1)
    rings = table.filter("held_out")
    axes.plot(rings["buckets"], rings["step_ms"], "o", color=INK, fillstyle="none", markersize=13)
    if fit.best_calls is not None:
        axes.axvline(fit.best_calls, color=FAINT_INK, linestyle=":", linewidth=1.2)
    return drawing


@figure("train", lambda arms: arms if len({arm.runs[0].workers for arm in arms}) > 1 else None)
def scaling(arms: Arms) -> Drawing:
    """Throughput over the ranks, and their efficiency; dashed is what the fewest ranks give, for every rank.

    Work per second on the left, efficiency on the right, each arm against its strategy's with the fewest workers.

    Returns:
        None where all arms have as many workers.
    """
    found = {arm: against for arm in arms if (against := reference_of(arm, arms)) is not None}
    table = pl.DataFrame(
        {
            "arm": arm.label,
            "strategy": arm.runs[0].facts.config.sync.name,
            "kind": kind,
            "against": first.label,
            "ranks": arm.runs[0].workers,
            "oversubscribed": bool(oversubscribed(arm.runs[0].facts)),
            "tokens_per_s": geometric_mean(rates),
            "least": min(rates),
            "most": max(rates),
        }
        for arm, (first, kind) in found.items()
        for rates in [arm.values(work_rate([arm])[0])]
    )
    before = table.select(against="arm", fewest="ranks", before="tokens_per_s")
    speedup, fewer = pl.col("tokens_per_s") / pl.col("before"), pl.col("fewest") / pl.col("ranks")
    table = table.join(before, on="against", maintain_order="left").with_columns(
        speedup=speedup, efficiency=speedup * fewer
    )
    fewer = pl.coalesce(pl.col("arm").shift(1).over("strategy", "kind"), "against")
    begin = table.sort("ranks", maintain_order=True).select("arm", begins=fewer)
    begin = begin.join(table.drop("against"), left_on="begins", right_on="arm")
    points = pl.concat([begin, table.with_columns(name="arm")], how="diagonal")
    in_percent = pl.col("tokens_per_s", "least", "most") * 100 * pl.col("efficiency") / pl.col("tokens_per_s")
    axes: dict[str, Any] = {"x": "ranks", "y": "tokens_per_s", "bars": ("least", "most"), "x_label": "ranks that train"}
    panels = [
        Lines(rows=points, y_label=work_rate(arms)[1], names="name", **axes),
        Lines(rows=points.with_columns(in_percent), y_label="efficiency of the ranks (%)", **axes),
    ]
    by_way = looks(table["strategy"].unique(maintain_order=True).to_list())
    shown = {
        arm: by_way[way]._replace(dashes=":" if kind == "weak" else "-", width=1)
        for arm, way, kind in table.select("arm", "strategy", "kind").iter_rows()
    }
    note = (
        "Geometric mean over launches; lines span them. Solid: strong scaling; dotted: weak. Dashed: every rank as "
        "fast as where there are fewest."
    )
    drawing = draw_panels(
        "Throughput and efficiency over ranks", caption(list(found), note),
        table.drop("least", "most", "fewest", "before"), panels, shown, legend=handles(by_way), panel_in=3.8,
    )  # fmt: skip
    drawing.figure.axes[1].axhline(100, color=FAINT_INK, linestyle="--", linewidth=1)
    return drawing
