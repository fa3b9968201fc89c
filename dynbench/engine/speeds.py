"""Speeds of the ranks, estimated from the steps of the run itself (`schedule.speeds=auto`)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from dynbench.config.schema import Config
from dynbench.schedule.evaluate import share_cost
from dynbench.schedule.partition_unequal import distinct_speeds
from dynbench.schedule.plan import FloatArray, Share, StepPlan
from dynbench.schedule.policy import Planner, Problem

SPEEDS_FILE = "speeds.csv"
"""In the run folder, where speeds are estimated: step from which on, rank, relative speed."""

MEMORY = 3
"""Estimates look back over as many times the steps between two of them."""

GatherPaces = Callable[[Mapping[int, float]], FloatArray]
"""From the paces of the ranks that this process plays to those of all ranks, shape [G], the same everywhere."""

_log = logging.getLogger(__name__)


class StepPlans:
    """The plans of a run.

    Args:
        planner: makes them; every process makes the same.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    def plan(self, step: int) -> StepPlan:
        """The plan of `step`; asked for in order, on all ranks alike."""
        return self.planner.plan(step)

    def observe(self, rank: int, share: Share, compute_ms: float) -> None:
        """Told how long a rank of this process computed its share of the last plan."""


class EstimatedSpeeds(StepPlans):
    """Plans that follow the speeds that the ranks turn out to have.

    A rank's pace in a step is its compute time over the predicted cost of its share. Every `every` steps the medians
    of the last paces are gathered from all ranks, so that all derive the same speeds. A process that warms up, or a
    machine that is busy for a while, does not reach the median; and where the cost model is off (it may know no launch
    overhead) the estimates move with the shares until the ranks' times are equal.

    Args:
        planner: its speeds are changed.
        problem: what it plans.
        every: steps between two estimates.
        gather: a collective.
        file: receives the estimates; None where another process writes them.
    """

    def __init__(self, planner: Planner, problem: Problem, every: int, gather: GatherPaces, file: Path | None) -> None:
        super().__init__(planner)
        self._problem = problem
        self._every = every
        self._gather = gather
        self._file = file
        self._paces: dict[int, deque[float]] = {}

    def plan(self, step: int) -> StepPlan:
        """The plan of `step`; a collective at every multiple of `every`."""
        if self._paces and step % self._every == 0:
            self._estimate(step)
        return super().plan(step)

    def observe(self, rank: int, share: Share, compute_ms: float) -> None:
        """Keep the rank's pace in this step."""
        cost = share_cost(share, self._problem)
        self._paces.setdefault(rank, deque(maxlen=MEMORY * self._every)).append(compute_ms / cost)

    def _estimate(self, step: int) -> None:
        paces = self._gather({rank: float(np.median(paces)) for rank, paces in self._paces.items()})
        speeds = distinct_speeds(1 / paces)
        self.planner.change_speeds(speeds)
        known = np.ones(len(paces)) if speeds is None else speeds
        _log.info("from step %d on, relative speeds %s", step, np.round(known, 3).tolist())
        if self._file is not None:
            _append(self._file, step, known)


def step_plans(config: Config, problem: Problem, gather: GatherPaces, file: Path | None) -> StepPlans:
    """The plans of a configuration: with the speeds it names, or with estimated ones.

    Args:
        config: resolved configuration.
        problem: what is planned.
        gather: for estimated speeds, a collective.
        file: for estimated speeds, receives them; None where another process writes them.
    """
    planner = Planner(config.schedule.policy_name, problem)
    if config.schedule.speeds != "auto":
        return StepPlans(planner)
    return EstimatedSpeeds(planner, problem, config.schedule.replan_steps, gather, file)


def _append(file: Path, step: int, speeds: FloatArray) -> None:
    header = "" if file.exists() else "step,rank,speed\n"
    with file.open("a", encoding="utf-8") as rows:
        rows.write(header + "".join(f"{step},{rank},{speed:.4f}\n" for rank, speed in enumerate(speeds)))
