"""One typical step as a timeline, ranks as rows, the arms above each other: who computes, who waits, when all end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.phases import PHASES, draw_bars
from dynbench.analysis.figures.views import ArmView, caption, drawable
from dynbench.config.image_rules import has_lengths

MOST_ROWS = 24
"""Ranks shown per arm; of more, the slowest and an even selection of the others."""


def timeline(arms: Sequence[ArmView]) -> style.Drawing | None:
    """The first launch of every arm at the same step."""
    arms = drawable(arms)
    step = typical_step(arms)
    if step is None:
        return None
    all_ranks = [step_rows(arm, step) for arm in arms]
    tables = [shown_ranks(rows) for rows in all_ranks]
    shown = max(table.height for table in tables)
    same_work = len({int(rows["work_hash"].sum()) for rows in all_ranks}) == 1
    height_in = 2.0 + len(arms) * (0.62 + 0.30 * min(shown, 8) + 0.13 * max(0, shown - 8))
    figure, panels = style.new_figure(
        f"One step, rank by rank (step {step})",
        caption(arms, *_notes(arms, same_work, shown)),
        rows=len(arms),
        width_in=10,
        height_in=height_in,
        share_x=True,
    )
    end = max(float(table["step_time_max_ms"][0]) for table in tables)
    for axes, arm, rows, table in zip(panels, arms, all_ranks, tables, strict=True):
        works = [_work(row, has_lengths(arm.runs[0].facts.config)) for row in table.iter_rows(named=True)]
        _draw_arm(axes, f"{arm.label}: {_summary(rows)}", table, works, end)
    panels[-1].set_xlabel("time since the step began (ms)")
    style.legend_of_figure(figure, panels[0])
    columns = ["arm", "step", "rank", "local_batch", "max_seq_len_in_batch", "padded_tokens", "step_time_max_ms"]
    columns += [phase.column for phase in PHASES]
    return style.Drawing(figure, pl.concat([table.select(columns) for table in tables]))


def typical_step(arms: Sequence[ArmView]) -> int | None:
    """The measured step of all arms nearest the medians of their step times, ratios to the first arm, and waiting."""
    tables = [
        arm.runs[0].measured.select(
            "step",
            pl.col("step_time_max_ms").log().alias(f"log_ms_{index}"),
            (pl.col("wait_ms_mean") / pl.col("step_time_max_ms")).alias(f"wait_{index}"),
        )
        for index, arm in enumerate(arms)
    ]
    if not tables:
        return None
    together = reduce(lambda left, right: left.join(right, on="step"), tables)
    if not together.height:
        return None
    log_ms = together.select(pl.col("^log_ms_.*$")).to_numpy()
    waits = together.select(pl.col("^wait_.*$")).to_numpy()
    facts = np.hstack([log_ms[:, :1], log_ms[:, 1:] - log_ms[:, :1], waits])
    distance = np.abs(facts - np.median(facts, axis=0)).sum(axis=1)
    return int(together["step"][int(distance.argmin())])


def step_rows(arm: ArmView, step: int) -> pl.DataFrame:
    """One row per worker of the arm's first launch, with every phase in ms."""
    rows = arm.runs[0].rank_rows(step).with_columns(arm=pl.lit(arm.label))
    known = pl.sum_horizontal(phase.column for phase in PHASES if phase.column != "other_ms")
    return rows.with_columns(other_ms=(pl.col("step_time_ms") - known).clip(lower_bound=0))


def shown_ranks(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows that are drawn: all up to `MOST_ROWS`, else the slowest rank and an even selection of the others."""
    if rows.height <= MOST_ROWS:
        return rows
    even = np.linspace(0, rows.height - 1, MOST_ROWS - 1).round().astype(int)
    chosen = sorted({*even.tolist(), int(rows["compute_ms"].arg_max() or 0)})
    return rows[chosen]


def _summary(rows: pl.DataFrame) -> str:
    """The step in numbers, from the rows of all its ranks."""
    step_ms = float(rows["step_time_max_ms"][0])
    waiting = float(rows["wait_ms"].sum()) / (step_ms * rows.height)
    return f"{style.digits(step_ms)} ms, {100 * waiting:.0f} % of the ranks' time is waiting"


def _draw_arm(axes: Axes, title: str, rows: pl.DataFrame, works: Sequence[str], end: float) -> None:
    draw_bars(axes, rows, 0.74)
    axes.axvline(float(rows["step_time_max_ms"][0]), color=style.INK, linewidth=1.2, linestyle="--")
    axes.set_title(title)
    axes.set_yticks(range(rows.height), works, fontsize=8 if rows.height <= 8 else 6)
    axes.set_ylim(rows.height - 0.45, -0.55)
    axes.set_xlim(0, end * 1.02)


def _work(row: dict[str, object], lengths: bool) -> str:
    split = "" if row["micro_batches"] == 1 else f" in {row['micro_batches']}"
    tokens = f", {row['padded_tokens']:,} tokens" if lengths else ""
    return f"rank {row['rank']}: {row['local_batch']} samples{split}{tokens}"


def _notes(arms: Sequence[ArmView], same_work: bool, shown: int) -> list[str]:
    notes = ["A typical step: step times, ratios and waiting nearest their medians; first launch of each arm."]
    if len(arms) > 1:
        notes.append("All arms compute the same samples." if same_work else "The arms' samples differ in this step.")
    if shown < arms[0].runs[0].workers:
        notes.append(f"{shown} of {arms[0].runs[0].workers} ranks are shown, the slowest among them.")
    padded = " Tokens are padded tokens." if has_lengths(arms[0].runs[0].facts.config) else ""
    notes.append(f"Compute is forward and backward; dashed: the step ends for all.{padded}")
    return notes
