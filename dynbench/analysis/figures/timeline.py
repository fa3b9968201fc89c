"""One typical step as a timeline: all ranks, who computes and who waits; or one, its passes and collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from dynbench.analysis.figures.charts import INK, PHASES, Bars, Drawing, Part, digits, figure
from dynbench.analysis.figures.views import Arms, ArmView, arm_figure
from dynbench.config.part_rules import has_lengths

MOST_ROWS = 24
"""Ranks shown per arm; of more, the slowest and an even selection of the others."""
PREFERRED = ("naive", "overlap")
"""Strategies of which one begins all after the backward pass, and the other each in it."""
PASSES = (
    Part("forward_ms", "forward", "forward"),
    Part("backward_ms", "backward", "backward"),
    Part("sync_ms", "synchronising", "under way"),
    Part("optimizer_ms", "optimizer", "optimizer"),
)
"""In the order in which they happen, as far as a rank's row tells."""
TRANSFER = Part("end_ms", "collective under way", "communication")
WAITING = Part("entered_ms", "waiting for another rank", "wait", "////")
"""Drawn from the call of a collective to the moment in that column."""
MOST_LANES = 12


@figure("train")
def timeline(arms: Arms) -> Drawing | None:
    """One typical step as a timeline, the ranks as rows, the baseline on top; hatched is waiting.

    The first launch of every arm at the same step.
    """
    step = typical_step(arms)
    if step is None:
        return None
    rows = {arm: _step_rows(arm, step) for arm in arms}
    tables = {arm: _shown_ranks(found) for arm, found in rows.items()}
    shown, first = max(table.height for table in tables.values()), arms[0].runs[0]
    alike = len({int(found["work_hash"].sum()) for found in rows.values()}) == 1
    samples = "All arms compute the same samples." if alike else "The arms' samples differ in this step."
    notes = (
        "A typical step: step times, ratios and waiting nearest their medians; first launch of each arm.",
        samples if len(arms) > 1 else "",
        f"{shown} of {first.workers} ranks are shown, the slowest among them." if shown < first.workers else "",
        "Compute is forward and backward; dashed: the step ends for all.",
        "Tokens are padded tokens." if has_lengths(first.facts.config) else "",
    )
    bars = []
    for arm, table in tables.items():
        step_ms, waited = float(table["step_time_max_ms"][0]), float(rows[arm]["wait_ms"].sum())
        share = waited / step_ms / rows[arm].height
        title = f"{arm.label}: {digits(step_ms)} ms, {100 * share:.0f} % of the ranks' time is waiting"
        bars.append(Bars(rows=table, parts=PHASES, title=title, x_label="time since the step began (ms)"))
    columns = ["arm", "step", "rank", "local_batch", "max_seq_len_in_batch", "padded_tokens", "step_time_max_ms"]
    drawn = pl.concat(table.select(*columns, *(phase.column for phase in PHASES)) for table in tables.values())
    layout: dict[str, Any] = {"columns": 1, "width_in": 10, "sharex": True}
    layout["panel_in"] = 0.62 + 0.30 * min(shown, 8) + 0.13 * max(0, shown - 8)
    drawing = arm_figure(f"One step, rank by rank (step {step})", arms, drawn, bars, *notes, **layout)
    for axes, table in zip(drawing.figure.axes, tables.values(), strict=True):
        axes.tick_params(axis="y", labelsize=8 if table.height <= 8 else 6)
        axes.axvline(table["step_time_max_ms"][0], color=INK, linewidth=1.2, linestyle="--")
    return drawing


def typical_step(arms: Arms) -> int | None:
    """The measured step of all arms nearest the medians of their step times, ratios to the first arm, and waiting."""
    joined = pl.DataFrame()
    for index, arm in enumerate(arms):
        of_arm = arm.runs[0].measured.select(
            "step",
            pl.col("step_time_max_ms").log().alias(f"log_ms_{index}"),
            (pl.col("wait_ms_mean") / pl.col("step_time_max_ms")).alias(f"wait_{index}"),
        )
        joined = joined.join(of_arm, on="step") if index else of_arm
    if not joined.height:
        return None
    log_ms = joined.select(pl.col("^log_ms_.*$")).to_numpy()
    waits = joined.select(pl.col("^wait_.*$")).to_numpy()
    facts = np.hstack([log_ms[:, :1], log_ms[:, 1:] - log_ms[:, :1], waits])
    distance = np.abs(facts - np.median(facts, axis=0)).sum(axis=1)
    return int(joined["step"][int(distance.argmin())])


def _step_rows(arm: ArmView, step: int) -> pl.DataFrame:
    """One row per worker of the arm's first launch, first what it computes, with every phase in ms."""
    rows, known = arm.runs[0].rank_rows(step), [phase.column for phase in PHASES[:-1]]
    tokens = ", {:,} tokens" if has_lengths(arm.runs[0].facts.config) else ""
    work = [
        f"rank {rank}: {samples} samples{f' in {split}' if split > 1 else ''}{tokens.format(padded)}"
        for rank, samples, split, padded in rows.select(
            "rank", "local_batch", "micro_batches", "padded_tokens"
        ).iter_rows()
    ]
    other = (pl.col("step_time_ms") - pl.sum_horizontal(known)).clip(lower_bound=0)
    return rows.select(pl.Series("work", work), pl.all(), arm=pl.lit(arm.label), other_ms=other)


def _shown_ranks(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows that are drawn: all up to `MOST_ROWS`, else the slowest rank and an even selection of the others."""
    if rows.height <= MOST_ROWS:
        return rows
    even = np.linspace(0, rows.height - 1, MOST_ROWS - 1).round().astype(int)
    return rows[sorted({*even.tolist(), int(rows["compute_ms"].arg_max() or 0)})]


@figure("train")
def comm_timeline(arms: Arms) -> Drawing | None:
    """One step of a rank, its passes above and its messages below.

    The first rank that trains, in a typical step of the first launch of two arms; None where calls are not known.
    """
    by_name = {arm.runs[0].facts.config.sync.name: arm for arm in reversed(arms) if arm.runs[0].calls is not None}
    chosen = [by_name[name] for name in PREFERRED if name in by_name]
    step = typical_step(chosen) if len(chosen) == len(PREFERRED) else None
    if step is None:
        return None
    calls = {arm: _calls(arm, step) for arm in chosen}
    if any(found.is_empty() for found in calls.values()):
        return None
    note = (
        f"Below the passes: every collective from its call to its end, hatched while it waits for the other rank to "
        f"call it, in at most {MOST_LANES} lanes. Passes are placed by the end of the last collective; all by the "
        "ranks' own records, without a profiler."
    )
    bars = []
    for arm, found in calls.items():
        passes = arm.runs[0].rank_rows(step).head(1).select(pl.lit("passes").alias("work"), pl.all())
        title, x_label = f"{arm.label}: {found.height} collectives", "time since the forward pass began (ms)"
        bars.append(Bars(rows=passes, parts=PASSES, title=title, x_label=x_label))
    table = pl.concat(found.drop("lane").with_columns(arm=pl.lit(arm.label)) for arm, found in calls.items())
    drawing = arm_figure(
        f"One step of a rank, pass by pass and message by message (step {step})", chosen,
        table.select("arm", "operation", "start_ms", "entered_ms", "end_ms"), bars, note, columns=1, width_in=10,
        panel_in=2.2, legend=[part.handle() for part in (*PASSES, TRANSFER, WAITING)], sharex=True,
    )  # fmt: skip
    for axes, found in zip(drawing.figure.axes, calls.values(), strict=True):
        for part in (TRANSFER, WAITING):
            length = (found[part.column] - found["start_ms"]).fill_null(0).clip(lower_bound=0)
            axes.barh(found["lane"], length, 0.7, left=found["start_ms"], **part.look())
        lanes = max(found["lane"])
        axes.set_yticks([0, (1 + lanes) / 2], ["passes", "messages"])
        axes.set_ylim(lanes + 0.6, -0.6)
    return drawing


def _calls(arm: ArmView, step: int) -> pl.DataFrame:
    """Of the first rank that trains, in ms since its forward pass began, with the lane of each, from 1."""
    run = arm.runs[0]
    assert run.calls is not None
    calls = run.calls.filter(rank=run.facts.servers, step=step).sort("start_ns")
    passes = run.rank_rows(step).row(0, named=True)
    before_ms = sum(float(passes[name]) for name in ("forward_ms", "backward_ms", "sync_ms"))
    ends: list[int] = []
    lanes = []
    for start, end in calls.select("start_ns", "end_ns").iter_rows():
        free = next((lane for lane, until in enumerate(ends) if until <= start), len(ends))
        ends[free : free + 1] = [end]
        lanes.append(1 + min(free, MOST_LANES - 1))
    origin = pl.col("end_ns").max() - before_ms * 1e6
    moments = ((pl.col(f"{name}_ns") - origin).truediv(1e6).alias(f"{name}_ms") for name in ("start", "entered", "end"))
    return calls.select(pl.col("operation").cast(pl.String), *moments, lane=pl.Series(lanes, dtype=pl.Int64))
