"""What a rank trains on in each step: the problem built from a configuration, and the plans made from it.

With `schedule.speeds=auto` the plans follow the ranks' speeds, estimated from the steps of the run itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from dynbench.config.part_rules import buffer_size
from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config, decided
from dynbench.errors import RunLookupError, UsageError
from dynbench.plugins import STRATEGIES, options_of
from dynbench.plugins.policies import PrefixOptions
from dynbench.plugins.strategies import Objective
from dynbench.runs.probe_record import ProbeRecord, read_probe
from dynbench.runs.records import LineFile
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore, default_root
from dynbench.schedule.capacity import Capacity, PackedCapacity, capacity_of
from dynbench.schedule.cost import CostModel, CostType
from dynbench.schedule.evaluate import share_cost
from dynbench.schedule.partition_unequal import distinct_speeds
from dynbench.schedule.plan import FloatArray, IntArray, Share, StepPlan
from dynbench.schedule.policy import Planner, Problem

if TYPE_CHECKING:
    from dynbench.workloads.base import Workload  # with torch, which commands that only plan do not wait for

SPEEDS_FILE = "speeds.csv"
"""In the run folder, where speeds are estimated: step from which on, rank, relative speed."""

MEMORY = 3
"""Estimates look back over as many times the steps between two of them."""

GatherPaces = Callable[[Mapping[int, float]], FloatArray]
"""From the paces of the ranks that this process plays to those of all ranks, shape [G], the same everywhere."""

_log = logging.getLogger(__name__)
Planned = tuple[Share, Sequence[Share] | None]
"""A rank's micro-batches of sample ids in a step, and every worker's; None where this rank knows but its own, which is
one micro-batch on every rank then."""


class EstimatedSpeeds(Planner):
    """Plans that follow the speeds that the ranks turn out to have.

    A rank's pace in a step is its compute time over the predicted cost of its share. Every `every` steps the medians
    of the last paces are gathered from all ranks, so that all derive the same speeds. A process that warms up, or a
    machine that is busy for a while, does not reach the median; and where the cost model is off (it may know no launch
    overhead) the estimates move with the shares until the ranks' times are equal.

    Args:
        policy: name of the policy.
        problem: what is planned.
        every: steps between two estimates.
        gather: a collective.
        file: receives the estimates; None where another process writes them.
    """

    def __init__(self, policy: str, problem: Problem, every: int, gather: GatherPaces, file: Path | None) -> None:
        super().__init__(policy, problem)
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
        self.change_speeds(speeds)
        known = np.ones(len(paces)) if speeds is None else speeds
        _log.info("from step %d on, relative speeds %s", step, np.round(known, 3).tolist())
        if self._file is not None:
            with LineFile(self._file, ("step", "rank", "speed")) as rows:
                rows.append(*((step, rank, f"{speed:.4f}") for rank, speed in enumerate(known)))


def step_plans(config: Config, problem: Problem, gather: GatherPaces, file: Path | None) -> Planner:
    """The plans of a configuration: with the speeds it names, or with estimated ones.

    Args:
        config: resolved configuration.
        problem: what is planned.
        gather: for estimated speeds, a collective.
        file: for estimated speeds, receives them; None where another process writes them.
    """
    schedule = config.schedule
    if schedule.speeds != "auto":
        return Planner(schedule.policy_name, problem)
    return EstimatedSpeeds(schedule.policy_name, problem, schedule.replan_steps, gather, file)


class PlanSource:
    """Where the loop gets a rank's work from; this one is of a rank that trains nothing."""

    def share(self, step: int) -> Planned:
        """What this rank runs in `step`; called for every step in order."""
        return (), None

    def observe(self, share: Share, compute_ms: float) -> None:
        """This rank computed the last share in so many milliseconds."""


class ReplicatedPlans(PlanSource):
    """Every rank makes the whole plan by itself: a pure function of what all ranks know, so nothing is exchanged."""

    def __init__(self, plans: Planner, rank: int) -> None:
        self._plans = plans
        self._rank = rank

    def share(self, step: int) -> Planned:
        """This rank's share of the plan, and all of them."""
        shares = self._plans.plan(step).shares
        return shares[self._rank], shares

    def observe(self, share: Share, compute_ms: float) -> None:
        """Passed on to the plans."""
        self._plans.observe(self._rank, share, compute_ms)


class PlansAhead(PlanSource):
    """Plans a step while the one before is about to begin, and announces it; not where that one decides it.

    Args:
        plans: of this rank; what they observe of the last share must not change the next.
        expect: called with the micro-batches of this step and the next.
        steps: of the run: none is planned beyond.
    """

    def __init__(self, plans: PlanSource, expect: Callable[[Share], None], steps: int) -> None:
        self._plans = plans
        self._expect = expect
        self._steps = steps
        self._next: Planned | None = None

    def share(self, step: int) -> Planned:
        """The share of `step`; that of the one after is planned and announced too."""
        planned, self._next = self._next or self._plans.share(step), None
        if step + 1 < self._steps:
            self._next = self._plans.share(step + 1)
            self._expect((*planned[0], *self._next[0]))
        return planned

    def observe(self, share: Share, compute_ms: float) -> None:
        """Passed on to the plans."""
        self._plans.observe(share, compute_ms)


def build_problem(
    config: Config,
    lengths: IntArray,
    workers: int,
    pad_to_multiple_of: int,
    root: Path | None = None,
    positions: int | None = None,
    second: IntArray | None = None,
) -> Problem:
    """The planning problem of a configuration.

    Args:
        config: resolved configuration.
        lengths: tokens of every training sample, after truncation, shape [N].
        workers: ranks that train (G).
        pad_to_multiple_of: padded lengths are multiples of this, tokens.
        root: results folder in which a probe run is looked up.
        positions: longest padded sample that the model takes, tokens; None for any.
        second: a second number of every sample, shape [N]; None where there is none.

    Raises:
        UsageError: settings that no plan can meet, or a probe run that is missing or was made for other ranks.
        RecordError: a run that is named as a probe and is none.
    """
    schedule = config.schedule
    return Problem(
        lengths=np.asarray(lengths, dtype=np.int64),
        workers=workers,
        global_batch=config.train.global_batch,
        cost=build_cost(config, pad_to_multiple_of, root, positions),
        capacity=build_capacity(config, workers, root),
        speeds=build_speeds(config),
        seed=config.train.seed,
        window=schedule.window_size,
        solver=options_of(schedule, PrefixOptions).solver,
        buffer=buffer_size(config, workers),
        micro_batches=schedule.micro_batches,
        objective=build_objective(config),
        settings=schedule,
        layout=config.workload.layout,
        second=second,
        second_weight=schedule.second_weight,
    )


def loaded_problem(config: Config, workload: Workload, workers: int, root: Path | None) -> Problem:
    """The planning problem of a resolved configuration on its loaded data; see `build_problem`."""
    multiple, train = decided(config.workload.pad_to_multiple_of), workload.train
    return build_problem(config, train.lengths, workers, multiple, root, workload.positions, train.second)


def build_cost(
    config: Config, pad_to_multiple_of: int, root: Path | None = None, positions: int | None = None
) -> CostModel:
    """The cost model of `schedule.cost_type`, with its coefficients from the configuration or the probe run.

    Raises:
        UsageError: a probe run that is missing, or holds no cost model that plans could be told apart by.
    """
    schedule = config.schedule
    cost_type = default_cost_type(config)[0] if schedule.cost_type == "auto" else schedule.cost_type
    model = partial(CostModel, cost_type, pad_to_multiple_of=pad_to_multiple_of, positions=positions)
    if cost_type != "measured":
        return model(attention_a=schedule.attention_a)
    further, fitted_on = schedule.further_ms, None
    if schedule.cost_coefficients is not None:
        alpha, beta, gamma = schedule.cost_coefficients
    else:
        probe = load_probe(config.probe.run, "probe.run", root)
        fit, fitted_on = probe.cost_model, probe.layout
        if fit is None:
            raise UsageError(
                f"probe.run: {config.probe.run!r} holds no cost model",
                "Probe again, or set schedule.cost_coefficients.",
            )
        if fit.beta_ms_per_token == fit.gamma_ms_per_token2 == 0:
            raise UsageError(
                f"probe.run: {config.probe.run!r} found the same step time at every length, so that no plan is better",
                "Probe again with longer samples (workload.max_length), or set schedule.cost_coefficients.",
            )
        alpha, beta, gamma = fit.alpha_ms, fit.beta_ms_per_token, fit.gamma_ms_per_token2
        further = fit.further_ms if further is None else further
    return model(alpha=alpha, beta=beta, gamma=gamma, further=further, fitted_on=fitted_on)


def default_cost_type(config: Config) -> tuple[CostType, str]:
    """What `schedule.cost_type: auto` means, and why."""
    if config.schedule.cost_coefficients is not None:
        return "measured", "schedule.cost_coefficients are given"
    if names_a_probe(config):
        return "measured", "probe.run names a probe"
    return "tokens", "nothing was measured"


def default_objective(config: Config) -> tuple[Objective, str]:
    """What `schedule.objective: auto` means, and why."""
    entry = STRATEGIES.get(config.sync.name)
    objective: Objective = "sum" if entry is None else entry.objective
    when = "once a step" if objective == "sum" else "in every micro-batch"
    return objective, f"ranks synchronise {when} (sync.name {config.sync.name})"


def build_objective(config: Config) -> Objective:
    """The objective of `schedule.objective`."""
    given = config.schedule.objective
    return default_objective(config)[0] if given == "auto" else given


def names_a_probe(config: Config) -> bool:
    """Whether `probe.run` means a run of the registry."""
    return config.probe.run not in (None, "auto", "off")


def build_capacity(config: Config, workers: int, root: Path | None = None) -> Capacity:
    """The capacity of `schedule.capacity`: none, one number, one per rank, or a probe run's table.

    Numbers are samples per micro-batch, or tokens per packed row.
    """
    capacity = config.schedule.capacity
    kind = Capacity if config.workload.layout == "padded" else PackedCapacity
    if capacity is None:
        return kind()
    if isinstance(capacity, int):
        return kind.uniform(capacity)
    if isinstance(capacity, tuple):
        return kind.per_rank(capacity)
    probe = load_probe(capacity, "schedule.capacity", root)
    return probe_capacity(probe, workers, config.schedule.micro_batches, ranks_of(config, 0).servers)


def build_speeds(config: Config) -> FloatArray | None:
    """Relative speed of each worker, shape [G]; None where ranks count as equal, or until they are estimated."""
    speeds = config.schedule.speeds
    return None if speeds is None or speeds == "auto" else np.asarray(speeds, dtype=np.float64)


def probe_speeds(probe: ProbeRecord, workers: int) -> FloatArray | None:
    """The speeds that a probe found, shape [G]; None where ranks are alike, or it measured other ranks."""
    return distinct_speeds(probe.speeds) if len(probe.speeds) == workers else None


def probe_capacity(
    probe: ProbeRecord, workers: int, micro_batches: int | Literal["auto"], servers: int = 0
) -> Capacity:
    """The capacities that a probe found, for `workers` workers, which `servers` ranks serve.

    Several micro-batches are planned for ranks of equal capacity only: the least of the ranks then holds for all.

    Raises:
        UsageError: it probed another number of workers, and not one for all.
    """
    tables = probe.tables
    if len(tables) not in (1, workers):
        raise UsageError(
            f"schedule.capacity: the probe measured {len(tables)} ranks, this run has {workers}",
            f"Probe with --nproc {servers + workers}.",
        )
    capacity = capacity_of(tables, probe.layout)
    return capacity if micro_batches == 1 else capacity.least()


def least_capacity_warning(named: str, probe: ProbeRecord, config: Config) -> list[str]:
    """That ranks do not use all that was probed for them, where it is so: a line; `named` says which probe."""
    parts, tables = config.schedule.micro_batches, probe.tables
    if parts == 1 or all(table == tables[0] for table in tables):
        return []
    return [
        f"schedule.capacity: {named} measured ranks of unequal capacity; with schedule.micro_batches {parts} the least "
        "at each length holds for all; schedule.micro_batches=1 plans with each rank's own"
    ]


def find_run(store: RunStore, key: str, reference: str) -> Run:
    """The run that a setting means.

    Raises:
        RunLookupError: nothing is meant, or more than one; names the setting.
    """
    try:
        return store.resolve(reference)
    except RunLookupError as error:
        raise RunLookupError(f"{key}: {error.message}", error.hint) from None


def load_probe(reference: str | None, key: str, root: Path | None) -> ProbeRecord:
    """The record of the probe run that `key` names.

    Raises:
        UsageError: none is named, or no such run.
        RecordError: the run is not a probe.
    """
    if reference is None or reference in ("auto", "off"):
        raise UsageError(f"{key}: {reference!r} names no probe run", "Name one: dynbench runs ls.")
    return read_probe(find_run(RunStore(root or default_root()), key, reference).path)
