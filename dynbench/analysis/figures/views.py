"""What the figures of training runs read: an arm's launches under one label, averaged over launches per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl
import polars.selectors as cs

from dynbench.analysis.crowding import MARK, oversubscribed
from dynbench.analysis.merge import MergedRun


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
        together = pl.concat([run.measured for run in self.runs], how="diagonal_relaxed")
        return together.group_by("step").agg(numbers.mean()).sort("step")

    @cached_property
    def all_steps(self) -> pl.DataFrame:
        """Measured steps of every launch, one below the other."""
        return pl.concat([run.measured for run in self.runs], how="diagonal_relaxed")


def drawable(arms: Sequence[ArmView]) -> list[ArmView]:
    """The arms that have a measured step."""
    return [arm for arm in arms if arm.steps.height]


def caption(arms: Sequence[ArmView], *notes: str) -> str:
    """Who is shown, how many, what was left out; then the figure's own notes."""
    return " ".join([f"Runs: {_members(arms)}.", _counts(arms), *notes])


def _members(arms: Sequence[ArmView]) -> str:
    endings = {
        tuple(run.label.removeprefix(arm.label) for run in arm.runs if run.label.startswith(f"{arm.label}-"))
        for arm in arms
    }
    if len(arms) > 1 and len(endings) == 1 and all(len(arm.runs) == len(min(endings)) for arm in arms):
        return f"{_shortened([f'ARM{ending}' for ending in min(endings)])} of each arm"
    return "; ".join(
        arm.label if names == [arm.label] else f"{arm.label} = {_shortened(names)}"
        for arm in arms
        for names in [[run.label for run in arm.runs]]
    )


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]}"


def _counts(arms: Sequence[ArmView]) -> str:
    facts = arms[0].runs[0].facts
    ranks, workers = (sorted({getattr(arm.runs[0], name) for arm in arms}) for name in ("world_size", "workers"))
    kind = "rank" if ranks == [1] else "ranks"
    kind = f"virtual {kind} (one device; communication: {facts.comm_model})" if facts.virtual else kind
    links = sorted({run.facts.link_gbps for arm in arms for run in arm.runs if run.facts.link_gbps is not None})
    kind += f", emulated link of {_range(links)} Gb/s" if links else ""
    kind += f" of which {_range(workers)} train" if workers != ranks else ""
    launches = sorted({len(arm.runs) for arm in arms})
    steps = sorted({run.measured.height for arm in arms for run in arm.runs})
    warmup = sorted({run.facts.config.train.warmup_steps for arm in arms for run in arm.runs})
    shared = [arm.label for arm in arms if oversubscribed(arm.runs[0].facts)]
    kind += f" ({MARK}: {', '.join(shared)})" if shared and len(arms) > 1 else f" ({MARK})" if shared else ""
    return (
        f"n = {_range(launches)} launch{'es' if launches[-1] > 1 else ''} per arm, {_range(ranks)} {kind}, "
        f"{_range(steps)} measured steps; the first {_range(warmup)} steps (warm-up) are left out."
    )


def _range(values: Sequence[float]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]}–{values[-1]}"
