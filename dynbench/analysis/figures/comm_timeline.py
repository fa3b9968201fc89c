"""One step of a rank as a timeline: its passes above, every collective below, two strategies one above the other."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.timeline import typical_step
from dynbench.analysis.figures.views import ArmView, caption, drawable

PREFERRED = ("naive", "overlap")
"""Strategies of which one begins all after the backward pass, and the other each in it."""
PASSES = {"forward_ms": "#0072B2", "backward_ms": "#56B4E9", "sync_ms": "#F4C7AE", "optimizer_ms": "#009E73"}
"""In the order in which they happen, as far as a rank's row tells."""
WAITING, TRANSFER = "#D55E00", "#CC79A7"
MOST_LANES = 12
_MS = 1e6


def comm_timeline(arms: Sequence[ArmView]) -> style.Drawing | None:
    """The first rank that trains, in a typical step of the first launch of two arms; None where calls are not known."""
    known = [arm for arm in drawable(arms) if arm.runs[0].calls is not None and not arm.runs[0].calls.is_empty()]
    by_name = {arm.runs[0].facts.config.sync.name: arm for arm in reversed(known)}
    chosen = [by_name[name] for name in PREFERRED if name in by_name]
    step = typical_step(chosen) if len(chosen) == len(PREFERRED) else None
    if step is None:
        return None
    drawn = [(arm, _passes(arm, step), _calls(arm, step)) for arm in chosen]
    if any(calls.is_empty() for *_, calls in drawn):
        return None
    note = (
        "Above: forward, backward, synchronising and the optimizer. Below: every collective from its call to its end, "
        "up to the dark mark waiting for the other rank to call it, in at most 12 lanes. Passes are laid back from the "
        "end of the last collective; all by the ranks' own records, without a profiler."
    )
    figure, panels = style.new_figure(
        f"One step of a rank, pass by pass and message by message (step {step})",
        caption(chosen, note),
        rows=len(drawn),
        width_in=10,
        height_in=5.6,
        share_x=True,
    )
    for axes, (arm, passes, calls) in zip(panels, drawn, strict=True):
        _draw(axes, passes, calls)
        axes.set_title(f"{arm.label}: {calls.height} collectives")
    panels[-1].set_xlabel("time since the forward pass began (ms)")
    style.legend_of_figure(figure, panels[0])
    table = [
        calls.with_columns(arm=pl.lit(arm.label)).select("arm", "operation", "start_ms", "entered_ms", "end_ms")
        for arm, _, calls in drawn
    ]
    return style.Drawing(figure, pl.concat(table).with_columns(pl.col("operation").cast(pl.String)))


def _passes(arm: ArmView, step: int) -> dict[str, float]:
    row = arm.runs[0].rank_rows(step).row(0, named=True)
    return {name: float(row[name]) for name in PASSES}


def _calls(arm: ArmView, step: int) -> pl.DataFrame:
    """Of the first rank that trains, in ms since its forward pass began, with the lane of each."""
    run = arm.runs[0]
    assert run.calls is not None
    calls = run.calls.filter(rank=run.facts.servers, step=step).sort("start_ns")
    if calls.is_empty():
        return calls
    passes = _passes(arm, step)
    before = passes["forward_ms"] + passes["backward_ms"] + passes["sync_ms"]
    origin = max(calls["end_ns"].to_list()) - before * _MS
    ends: list[float] = []
    lanes = []
    for start, end in calls.select("start_ns", "end_ns").iter_rows():
        free = next((lane for lane, until in enumerate(ends) if until <= start), len(ends))
        ends[free : free + 1] = [end]
        lanes.append(min(free, MOST_LANES - 1))
    moments = {"start_ms": "start_ns", "entered_ms": "entered_ns", "end_ms": "end_ns"}
    return calls.with_columns(
        *((pl.col(column) - origin).truediv(_MS).alias(name) for name, column in moments.items()),
        lane=pl.Series(lanes),
    )


def _draw(axes: Axes, passes: dict[str, float], calls: pl.DataFrame) -> None:
    left = 0.0
    for name, color in PASSES.items():
        label = {"sync_ms": "synchronising"}.get(name, name.removesuffix("_ms"))
        axes.barh([0], [passes[name]], left=left, height=0.8, color=color, label=label)
        left += passes[name]
    lanes = [1 + lane for lane in calls["lane"]]
    waiting = (calls["entered_ms"].fill_null(strategy="zero") - calls["start_ms"]).clip(lower_bound=0)
    length = calls["end_ms"] - calls["start_ms"]
    axes.barh(lanes, length, left=calls["start_ms"], height=0.7, color=TRANSFER, label="collective under way")
    axes.barh(lanes, waiting, left=calls["start_ms"], height=0.7, color=WAITING, alpha=0.6, label="of it waiting")
    axes.set_yticks([0, (1 + max(lanes)) / 2], ["passes", "messages"])
    axes.set_ylim(max(lanes) + 0.6, -0.6)
