"""What the figures of training runs read: an arm's launches under one label, averaged over launches per step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import polars as pl
import polars.selectors as cs

from dynbench.analysis.arms import Arm, unit_of
from dynbench.analysis.figures.charts import PALETTE, Bars, Drawing, Lines, draw_panels, looks
from dynbench.analysis.measure import Summaries, known_values
from dynbench.analysis.questions import SAMPLES
from dynbench.analysis.run_facts import MARK, oversubscribed
from dynbench.analysis.summary import summary_of

FASTEST = 4
"""Arms that are coloured beside the baseline where there are more arms than colours."""


@dataclass(frozen=True, eq=False)
class ArmView(Arm):
    """One line, bar or panel of a figure: an arm of the launches that are shown.

    Attributes:
        made: their summaries, where they are at hand.
    """

    made: Summaries = ()

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Measured steps in order, every number the mean over the launches that have the step."""
        if len(self.runs) == 1:
            return self.runs[0].measured
        numbers = cs.numeric() - cs.by_name("step", "work_hash")
        return self.all_steps.group_by("step").agg(numbers.mean()).sort("step")

    @cached_property
    def all_steps(self) -> pl.DataFrame:
        """Measured steps of every launch, one below the other."""
        return pl.concat([run.measured for run in self.runs], how="diagonal_relaxed")

    @cached_property
    def summaries(self) -> Summaries:
        """Of its launches."""
        return self.made or [summary_of(run) for run in self.runs]

    def values(self, key: str) -> list[float]:
        """The measure at a dotted path of the summaries, of the launches that have it."""
        return known_values(self.summaries, key)

    def mean(self, key: str) -> float | None:
        """Mean over them; None where there are none."""
        return fmean(values) if (values := self.values(key)) else None


Arms = Sequence[ArmView]


def means(arms: Arms, keys: Mapping[str, str]) -> pl.DataFrame:
    """Means over launches: a row per arm, and beside its label a column for each measure of `keys`, null if unknown."""
    rows = [{"arm": arm.label, **{name: arm.mean(key) for name, key in keys.items()}} for arm in arms]
    return pl.DataFrame(rows, {"arm": pl.String, **dict.fromkeys(keys, pl.Float64)})


def work_rate(arms: Arms) -> tuple[str, str]:
    """Key of the measure that says how much work the arms do in a second, and what that is called."""
    unit = unit_of(arms[0].runs[0])
    return f"throughput_{'samples' if unit is SAMPLES else 'tokens'}_per_s.mean", str(unit.rate)


def arm_figure(
    title: str, arms: Arms, table: pl.DataFrame, panels: Sequence[Lines | Bars], *notes: str, **layout: Any
) -> Drawing:
    """Panels of lines or bars, one per arm, or of a point with the arm's name; `layout` as `draw_panels` takes it."""
    lines = isinstance(panels[0], Lines)
    few = f"In colour: {arms[0].label} and the {FASTEST} fastest." if lines and len(arms) > len(PALETTE) else ""
    fastest = sorted(arms[1:], key=lambda arm: arm.mean(work_rate([arm])[0]) or 0.0)[-FASTEST:]
    shown = looks([arm.label for arm in arms], [arm.label for arm in (*arms[:1], *fastest)])
    if isinstance(panels[0], Lines) and panels[0].names:
        shown, layout = {name: look._replace(dashes="") for name, look in shown.items()}, {"legend": [], **layout}
    return draw_panels(title, caption(arms, *notes, few), table, panels, shown, **layout)


def caption(arms: Arms, *notes: str) -> str:
    """How much is shown and what was left out; then the figure's own notes."""
    runs, facts = [run for arm in arms for run in arm.runs], arms[0].runs[0].facts
    ranks, workers = (_range(getattr(arm.runs[0], name) for arm in arms) for name in ("world_size", "workers"))
    launches, steps = _range(len(arm.runs) for arm in arms), _range(run.measured.height for run in runs)
    kind = "rank" if ranks == "1" else "ranks"
    kind = f"virtual {kind} (one device; communication: {facts.comm_model})" if facts.virtual else kind
    links = [run.facts.link_gbps for run in runs if run.facts.link_gbps is not None]
    kind += f", emulated link of {_range(links)} Gb/s" if links else ""
    kind += f" of which {workers} train" if workers != ranks else ""
    shared = [arm.label for arm in arms if oversubscribed(arm.runs[0].facts)]
    named = f": {', '.join(shared)}" if len(shared) < len(arms) else ""
    kind += f" ({MARK}{named})" if shared else ""
    counts = (
        f"n = {launches} launch{'' if launches == '1' else 'es'} per arm, {ranks} {kind}, {steps} measured steps; the "
        f"first {_range(run.facts.config.train.warmup_steps for run in runs)} steps (warm-up) are left out."
    )
    return " ".join(filter(None, [counts, *notes]))


def _range(values: Iterable[float]) -> str:
    known = sorted(set(values))
    return f"{known[0]}" if len(known) == 1 else f"{known[0]}–{known[-1]}"
