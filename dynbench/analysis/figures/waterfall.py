"""From the baseline's step to a candidate's: what each part of the waste gave back, and what is left to the ideal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.figures import style
from dynbench.analysis.figures.views import ArmView, caption, drawable
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.speedup import unit_of
from dynbench.analysis.steps import CODING
from dynbench.analysis.waste import PARTS, ms_per_kilotoken, waste_of

MOST_PANELS = 4
TITLES: Mapping[str, str] = {
    "padding": "padding",
    "waiting": "waiting",
    "exposed_comm": "communication",
    "compression": "compression",
    "planning": "planning",
    "data": "data",
    "compute": "slower compute",
    "other": "other",
}
"""A change's part and what its line is called, from top to bottom; those of `_SELDOM` only where an arm has any."""
_SELDOM = ("compression", "compute")
GAIN, COST, IDEAL, LOST = "#009E73", "#D55E00", "#0072B2", "#BBBBBB"
BAR = 0.66
LINE_IN = 0.27
ROOM = 1.68
"""The axis ends this many times as far out as the longest bar, so that its number has room."""
LONGEST_TITLE = 44

Times = Mapping[str, float]


def waterfall(arms: Sequence[ArmView]) -> style.Drawing | None:
    """A panel per candidate, of the fastest first, at most `MOST_PANELS`; times per 1,000 units of work.

    Returns:
        None with a single arm, or where no ideal can be stated for the baseline or any candidate.
    """
    known = {arm.label: times for arm in drawable(arms) if (times := _times(arm)) is not None}
    if not arms or arms[0].label not in known or len(known) < 2:
        return None
    base = known.pop(arms[0].label)
    shown = dict(sorted(known.items(), key=lambda item: sum(item[1].values()))[:MOST_PANELS])
    note = (
        "Mean over launches. Ideal: the same samples without padding, waiting, communication, planning or loading, by "
        "the cost of the arm that computes fastest. Slower compute: what an arm's own cost is above it."
    )
    more = f" Of {len(known)} candidates, the {len(shown)} fastest." if len(known) > len(shown) else ""
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    lines = len(TITLES) + 2
    figure, panels = style.new_figure(
        f"What {_short(arms[0].label, 30)} loses in a step, and what was given back",
        caption([arm for arm in arms if arm.label in (arms[0].label, *shown)], note + more),
        rows=rows,
        columns=columns,
        width_in=6.5 if columns == 1 else 11,
        height_in=1.3 + rows * (0.75 + LINE_IN * lines),
        share_x=True,
    )
    extent = max(_extent(base, times) for times in shown.values())
    for panel, (label, times) in zip(panels, shown.items(), strict=False):
        _draw(panel, (arms[0].label, base), (label, times), extent)
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(shown) - columns) : len(shown)]:
        panel.set_xlabel(f"time per 1,000 {unit_of(arms[0].runs[0]).name}s (ms)")
        panel.xaxis.set_tick_params(labelbottom=True)
    style.legend_of_figure(figure, panels[0])
    return style.Drawing(figure, pl.DataFrame(list(_rows(base, {arms[0].label: base, **shown}))))


def _times(arm: ArmView) -> Times | None:
    """Time of the ideal and of `PARTS`, ms per 1,000 real tokens, means over launches; None where one has none."""
    launches = [_of_launch(run) for run in arm.runs]
    known = [launch for launch in launches if launch is not None]
    if len(known) < len(launches):
        return None
    return {part: fmean(launch[part] for launch in known) for part in ("ideal", *PARTS, "compression")}


def _of_launch(run: MergedRun) -> Times | None:
    """Compression has that part of the exposed communication which it has of both, hidden or not."""
    found = ms_per_kilotoken(waste_of(run), run.time_ms, float(run.measured["real_tokens"].sum()))
    if found is None:
        return None
    coding, moving = (
        sum(float(run.measured[name].sum()) for name in names if name in run.measured.columns)
        for names in (CODING, ["comm_ms"])
    )
    compression = found["exposed_comm"] * (coding / (coding + moving) if coding else 0.0)
    return {**found, "exposed_comm": found["exposed_comm"] - compression, "compression": compression}


def _parts(arms: Iterable[Times]) -> list[str]:
    """Of `TITLES`, those that say something of the arms."""
    return [part for part in TITLES if part not in _SELDOM or any(times[part] for times in arms)]


def _changes(base: Times, times: Times) -> list[tuple[str, float]]:
    """What each part takes more than in the baseline, in the order of `TITLES`."""
    return [(part, times[part] - base[part]) for part in _parts((base, times))]


def _extent(base: Times, times: Times) -> float:
    reached = sum(base.values()) + np.cumsum([0.0, *(change for _, change in _changes(base, times))])
    return float(reached.max())


def _draw(axes: Axes, base: tuple[str, Times], candidate: tuple[str, Times], extent: float) -> None:
    steps, decimals = _changes(base[1], candidate[1]), max(0, 2 - math.floor(math.log10(extent)))
    last = len(steps) + 1
    for place, (_, times) in ((0, base), (last, candidate)):
        ideal, total = times["ideal"], sum(times.values())
        axes.barh(place, ideal, BAR, color=IDEAL, label="ideal" if place == 0 else None)
        axes.barh(place, total - ideal, BAR, left=ideal, color=LOST, label="lost" if place == 0 else None)
        _write(axes, total, place, f"{total:.{decimals}f} ms, {total / ideal:.2f} × ideal", extent, fontweight="bold")
    reached = sum(base[1].values())
    for place, (_, change) in enumerate(steps, start=1):
        axes.plot([reached] * 2, [place - 1 + BAR / 2, place - BAR / 2], color=style.FAINT_INK, linewidth=0.8)
        axes.barh(place, change, BAR, left=reached, color=GAIN if change <= 0 else COST)
        _write(axes, max(reached, reached + change), place, _signed(change, decimals), extent)
        reached += change
    axes.plot([reached] * 2, [last - 1 + BAR / 2, last - BAR / 2], color=style.FAINT_INK, linewidth=0.8)
    for label, color in (("given back", GAIN), ("costs more", COST)):
        axes.barh(0, 0, BAR, color=color, label=label)
    names = [_short(base[0], 22), *(TITLES[part] for part, _ in steps), _short(candidate[0], 22)]
    axes.set_yticks(range(last + 1), names)
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_xlim(0, ROOM * extent)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_title(_short(candidate[0], LONGEST_TITLE))


def _write(axes: Axes, right: float, place: int, text: str, extent: float, **look: Any) -> None:
    axes.text(right + 0.012 * extent, place, text, va="center", fontsize=9, **look)


def _signed(change: float, decimals: int) -> str:
    text = f"{change:+.{decimals}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else "0"


def _short(label: str, most: int) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _rows(base: Times, shown: Mapping[str, Times]) -> Iterator[dict[str, object]]:
    """One per arm and part, and the total of each arm."""
    parts = [*_parts(shown.values()), "ideal"]
    for label, times in shown.items():
        for part in parts:
            yield {"arm": label, "part": part, "ms": times[part], "change_ms": times[part] - base[part]}
        total = sum(times.values())
        yield {"arm": label, "part": "total", "ms": total, "change_ms": total - sum(base.values())}
