"""What the figures of training runs read: an arm's launches under one label, averaged over launches per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import polars as pl
import polars.selectors as cs

from dynbench.analysis.figures.charts import Look, Panel, line_figure, looks
from dynbench.analysis.figures.style import PALETTE, Drawing
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.run_facts import MARK, oversubscribed

FASTEST = 4
"""Arms that are coloured beside the baseline where there are more arms than colours."""


@dataclass(frozen=True)
class ArmView:
    """One line, bar or panel of a figure.

    Attributes:
        label: what the legend says.
        runs: the launches of the arm.
    """

    label: str
    runs: tuple[MergedRun, ...]

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


Arms = Sequence[ArmView]
Facts = Callable[[MergedRun], Mapping[str, object]]


def over_launches(arms: Arms, facts: Facts) -> pl.DataFrame:
    """Mean, least and greatest of each of a launch's facts over an arm's launches: a row where it is a number."""
    rows = [
        (arm.label, name, value)
        for arm in arms
        for run in arm.runs
        for name, value in facts(run).items()
        if isinstance(value, float)
    ]
    found = pl.DataFrame(rows, {"arm": pl.String, "quantity": pl.String, "value": pl.Float64}, orient="row")
    value, of = pl.col("value"), ("quantity", "arm")
    return found.group_by(of, maintain_order=True).agg(mean=value.mean(), least=value.min(), most=value.max())


def arm_looks(arms: Arms) -> dict[str, Look]:
    """A colour per arm; of many arms, of the baseline and of those that take the least time per unit of work."""
    by_time = sorted(arms[1:], key=lambda arm: fmean(arm.steps["step_time_max_ms"]) / fmean(arm.steps["real_tokens"]))
    return looks([arm.label for arm in arms], [arm.label for arm in (*arms[:1], *by_time[:FASTEST])])


def arm_figure(
    title: str, arms: Arms, table: pl.DataFrame, panels: Sequence[Panel], *notes: str, **layout: Any
) -> Drawing:
    """Panels of lines, one per arm; `layout` as `line_figure` takes it."""
    few = f"In colour: {arms[0].label} and the {FASTEST} fastest." if len(arms) > len(PALETTE) else ""
    return line_figure(title, caption(arms, *notes, few), table, panels, arm_looks(arms), **layout)


def caption(arms: Arms, *notes: str) -> str:
    """How much is shown and what was left out; then the figure's own notes."""
    return " ".join(filter(None, [_counts(arms), *notes]))


def _counts(arms: Arms) -> str:
    runs, facts = [run for arm in arms for run in arm.runs], arms[0].runs[0].facts
    ranks, workers = (_range(getattr(arm.runs[0], name) for arm in arms) for name in ("world_size", "workers"))
    launches, steps = _range(len(arm.runs) for arm in arms), _range(run.measured.height for run in runs)
    kind = "rank" if ranks == "1" else "ranks"
    kind = f"virtual {kind} (one device; communication: {facts.comm_model})" if facts.virtual else kind
    links = [run.facts.link_gbps for run in runs if run.facts.link_gbps is not None]
    kind += f", emulated link of {_range(links)} Gb/s" if links else ""
    kind += f" of which {workers} train" if workers != ranks else ""
    shared = [arm.label for arm in arms if oversubscribed(arm.runs[0].facts)]
    kind += f" ({MARK}: {', '.join(shared)})" if shared and len(arms) > 1 else f" ({MARK})" if shared else ""
    return (
        f"n = {launches} launch{'' if launches == '1' else 'es'} per arm, {ranks} {kind}, {steps} measured steps; the "
        f"first {_range(run.facts.config.train.warmup_steps for run in runs)} steps (warm-up) are left out."
    )


def _range(values: Iterable[float]) -> str:
    known = sorted(set(values))
    return f"{known[0]}" if len(known) == 1 else f"{known[0]}–{known[-1]}"
