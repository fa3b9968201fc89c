"""One typical step as a timeline: all ranks, who computes and who waits; or one, its passes and collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from dynbench.analysis.figures.charts import PHASES, WAIT_EDGE, Bars, Part, draw_bars
from dynbench.analysis.figures.style import COLORS, INK, Drawing, digits, new_figure
from dynbench.analysis.figures.views import Arms, ArmView, caption
from dynbench.config.image_rules import has_lengths

MOST_ROWS = 24
"""Ranks shown per arm; of more, the slowest and an even selection of the others."""
PREFERRED = ("naive", "overlap")
"""Strategies of which one begins all after the backward pass, and the other each in it."""
PASSES = (
    Part("forward_ms", "forward", COLORS["forward"]),
    Part("backward_ms", "backward", COLORS["backward"]),
    Part("sync_ms", "synchronising", COLORS["under way"]),
    Part("optimizer_ms", "optimizer", COLORS["optimizer"]),
)
"""In the order in which they happen, as far as a rank's row tells."""
TRANSFER = Part("end_ms", "collective under way", COLORS["communication"])
WAITING = Part("entered_ms", "of it waiting", COLORS["wait"], "////")
"""Drawn from the call of a collective to the moment in that column."""
MOST_LANES = 12


def timeline(arms: Arms) -> Drawing | None:
    """The first launch of every arm at the same step."""
    step = typical_step(arms)
    if step is None:
        return None
    all_ranks = [step_rows(arm, step) for arm in arms]
    tables = [shown_ranks(rows) for rows in all_ranks]
    shown = max(table.height for table in tables)
    same_work = len({int(rows["work_hash"].sum()) for rows in all_ranks}) == 1
    figure, panels = new_figure(
        f"One step, rank by rank (step {step})", caption(arms, *_notes(arms, same_work, shown)), panels=len(arms),
        width_in=10, panel_in=0.62 + 0.30 * min(shown, 8) + 0.13 * max(0, shown - 8), share_x=True,
        legend=[phase.handle() for phase in PHASES],
    )  # fmt: skip
    for axes, arm, rows, table in zip(panels, arms, all_ranks, tables, strict=True):
        works = [_work(row, has_lengths(arm.runs[0].facts.config)) for row in table.iter_rows(named=True)]
        step_ms = float(rows["step_time_max_ms"][0])
        waiting = float(rows["wait_ms"].sum()) / (step_ms * rows.height)
        title = f"{arm.label}: {digits(step_ms)} ms, {100 * waiting:.0f} % of the ranks' time is waiting"
        draw_bars(axes, works, Bars(table, PHASES, title=title), height=0.74)
        axes.tick_params(axis="y", labelsize=8 if table.height <= 8 else 6)
        axes.axvline(step_ms, color=INK, linewidth=1.2, linestyle="--")
    panels[-1].set_xlabel("time since the step began (ms)")
    columns = ["arm", "step", "rank", "local_batch", "max_seq_len_in_batch", "padded_tokens", "step_time_max_ms"]
    columns += [phase.column for phase in PHASES]
    return Drawing(figure, pl.concat([table.select(columns) for table in tables]))


def typical_step(arms: Arms) -> int | None:
    """The measured step of all arms nearest the medians of their step times, ratios to the first arm, and waiting."""
    together = pl.DataFrame()
    for index, arm in enumerate(arms):
        of_arm = arm.runs[0].measured.select(
            "step",
            pl.col("step_time_max_ms").log().alias(f"log_ms_{index}"),
            (pl.col("wait_ms_mean") / pl.col("step_time_max_ms")).alias(f"wait_{index}"),
        )
        together = together.join(of_arm, on="step") if index else of_arm
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
    return rows[sorted({*even.tolist(), int(rows["compute_ms"].arg_max() or 0)})]


def _work(row: dict[str, object], lengths: bool) -> str:
    split = "" if row["micro_batches"] == 1 else f" in {row['micro_batches']}"
    tokens = f", {row['padded_tokens']:,} tokens" if lengths else ""
    return f"rank {row['rank']}: {row['local_batch']} samples{split}{tokens}"


def _notes(arms: Arms, same_work: bool, shown: int) -> Sequence[str]:
    same = "All arms compute the same samples." if same_work else "The arms' samples differ in this step."
    ranks = arms[0].runs[0].workers
    return (
        "A typical step: step times, ratios and waiting nearest their medians; first launch of each arm.",
        same if len(arms) > 1 else "",
        f"{shown} of {ranks} ranks are shown, the slowest among them." if shown < ranks else "",
        "Compute is forward and backward; dashed: the step ends for all.",
        "Tokens are padded tokens." if has_lengths(arms[0].runs[0].facts.config) else "",
    )


def comm_timeline(arms: Arms) -> Drawing | None:
    """The first rank that trains, in a typical step of the first launch of two arms; None where calls are not known."""
    by_name = {arm.runs[0].facts.config.sync.name: arm for arm in reversed(arms) if arm.runs[0].calls is not None}
    chosen = [by_name[name] for name in PREFERRED if name in by_name]
    step = typical_step(chosen) if len(chosen) == len(PREFERRED) else None
    if step is None:
        return None
    drawn = {arm.label: (arm.runs[0].rank_rows(step).head(1), _calls(arm, step)) for arm in chosen}
    if any(calls.is_empty() for _, calls in drawn.values()):
        return None
    note = (
        f"Below the passes: every collective from its call to its end, hatched while it waits for the other rank to "
        f"call it, in at most {MOST_LANES} lanes. Passes are laid back from the end of the last collective; all by the "
        "ranks' own records, without a profiler."
    )
    figure, panels = new_figure(
        f"One step of a rank, pass by pass and message by message (step {step})", caption(chosen, note), panels=2,
        width_in=10, panel_in=2.2, legend=[part.handle() for part in (*PASSES, TRANSFER, WAITING)], share_x=True,
    )  # fmt: skip
    for axes, (label, (passes, calls)) in zip(panels, drawn.items(), strict=True):
        draw_bars(axes, ["passes"], Bars(passes, PASSES, title=f"{label}: {calls.height} collectives"), height=0.8)
        for part in (TRANSFER, WAITING):
            length = (calls[part.column] - calls["start_ms"]).fill_null(0).clip(lower_bound=0)
            edge = WAIT_EDGE if part.hatch else "none"
            axes.barh(
                calls["lane"], length, 0.7, left=calls["start_ms"], color=part.color, hatch=part.hatch, edgecolor=edge,
                linewidth=0,
            )  # fmt: skip
        lanes = max(calls["lane"].to_list())
        axes.set_yticks([0, (1 + lanes) / 2], ["passes", "messages"])
        axes.set_ylim(lanes + 0.6, -0.6)
    panels[-1].set_xlabel("time since the forward pass began (ms)")
    tables = [calls.with_columns(arm=pl.lit(label)) for label, (_, calls) in drawn.items()]
    return Drawing(
        figure, pl.concat(tables).select("arm", pl.col("operation").cast(pl.String), "start_ms", "entered_ms", "end_ms")
    )


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
    return calls.with_columns(*moments, lane=pl.Series(lanes, dtype=pl.Int64))
