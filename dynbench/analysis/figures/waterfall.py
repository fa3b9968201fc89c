"""From the baseline's step to a candidate's: what each part of the waste gave back, and what is left to the ideal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import fmean

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from dynbench.analysis.arms import unit_of
from dynbench.analysis.figures.charts import Part
from dynbench.analysis.figures.style import COLORS, FAINT_INK, Drawing, new_figure
from dynbench.analysis.figures.views import Arms, ArmView, caption
from dynbench.analysis.merge import MergedRun
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
IDEAL, LOST, GAIN, COST = COLORS["compute"], COLORS["other"], "#009E73", "#D55E00"
KINDS = {"ideal": IDEAL, "lost": LOST, "given back": GAIN, "costs more": COST}
BAR = 0.66
LINE_IN = 0.27
ROOM = 1.68
"""The axis ends this many times as far out as the longest bar, so that its number has room."""
LONGEST_TITLE, LONGEST_NAME = 44, 22

Times = Mapping[str, float]


def waterfall(arms: Arms) -> Drawing | None:
    """A panel per candidate, of the fastest first, at most `MOST_PANELS`; times per 1,000 units of work.

    Returns:
        None with a single arm, or where no ideal can be stated for the baseline or any candidate.
    """
    known = {arm.label: times for arm in arms if (times := _times(arm)) is not None}
    if not arms or arms[0].label not in known or len(known) < 2:
        return None
    base = arms[0].label
    fastest = sorted((label for label in known if label != base), key=lambda label: sum(known[label].values()))
    shown = {label: known[label] for label in (base, *fastest[:MOST_PANELS])}
    note = (
        "Mean over launches. Ideal: the same samples without padding, waiting, communication, planning or loading, by "
        "the cost of the arm that computes fastest. Slower compute: what an arm's own cost is above it."
    )
    more = f"Of {len(fastest)} candidates, the {MOST_PANELS} fastest." if len(fastest) > MOST_PANELS else ""
    columns = min(2, len(shown) - 1)
    figure, panels = new_figure(
        f"What {_short(base, 30)} loses in a step, and what was given back",
        caption([arm for arm in arms if arm.label in shown], note, more),
        panels=len(shown) - 1, columns=columns, width_in=6.5 if columns == 1 else 11,
        panel_in=0.75 + LINE_IN * (len(_parts(shown.values())) + 2),
        legend=[Part("", title, color).handle() for title, color in KINDS.items()],
    )  # fmt: skip
    table = pl.DataFrame(list(_rows(shown[base], shown)))
    reached = [_reached(shown[base], times) for times in shown.values()]
    for axes, label in zip(panels, fastest, strict=False):
        _draw(axes, base, label, shown, float(np.max(np.concatenate(reached))))
    for axes in panels[-columns:]:
        axes.set_xlabel(f"time per 1,000 {unit_of(arms[0].runs[0]).name}s (ms)")
    return Drawing(figure, table)


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
    known = list(arms)
    return [part for part in TITLES if part not in _SELDOM or any(times[part] for times in known)]


def _reached(base: Times, times: Times) -> list[float]:
    """Where the baseline's step ends, and where it would after each change, in the order of `TITLES`."""
    changes = [times[part] - base[part] for part in _parts((base, times))]
    return list(sum(base.values()) + np.cumsum([0.0, *changes]))


def _draw(axes: Axes, base: str, candidate: str, shown: Mapping[str, Times], extent: float) -> None:
    """Totals of both arms above and below, in between what each part takes more or less than in the baseline."""
    arms = {0: base, (last := len(parts := _parts((shown[base], shown[candidate]))) + 1): candidate}
    decimals, ends = max(0, 2 - math.floor(math.log10(extent))), _reached(shown[base], shown[candidate])
    for place, arm in arms.items():
        ideal, total = shown[arm]["ideal"], sum(shown[arm].values())
        axes.barh([place] * 2, [ideal, total - ideal], BAR, left=[0, ideal], color=[IDEAL, LOST])
        text = f"{total:.{decimals}f} ms, {total / ideal:.2f} × ideal"
        axes.text(total + 0.012 * extent, place, text, va="center", fontsize=9, fontweight="bold")
    for place, (before, after) in enumerate(pairwise(ends), start=1):
        axes.barh(place, after - before, BAR, left=before, color=GAIN if after <= before else COST)
        text = f"{after - before:+.{decimals}f}".replace("-", "\N{MINUS SIGN}")
        right = max(before, after) + 0.012 * extent
        axes.text(right, place, text if text.strip("+\N{MINUS SIGN}0.") else "0", va="center", fontsize=9)
    axes.vlines(ends, np.arange(last) + BAR / 2, np.arange(1, last + 1) - BAR / 2, color=FAINT_INK, linewidth=0.8)
    axes.set_yticks(
        range(last + 1),
        [_short(base, LONGEST_NAME), *(TITLES[part] for part in parts), _short(candidate, LONGEST_NAME)],
    )
    axes.set(ylim=(last + 0.6, -0.6), xlim=(0, ROOM * extent), title=_short(candidate, LONGEST_TITLE))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def _short(label: str, most: int) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _rows(base: Times, shown: Mapping[str, Times]) -> Iterator[dict[str, object]]:
    """One per arm and part, and the total of each arm, whose change is against the baseline's."""
    for label, times in shown.items():
        known = {**{part: times[part] for part in _parts(shown.values())}, "ideal": times["ideal"]}
        known["total"], before = sum(times.values()), {**base, "total": sum(base.values())}
        for part, ms in known.items():
            yield {"arm": label, "part": part, "ms": ms, "change_ms": ms - before[part]}
