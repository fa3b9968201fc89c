"""A probe before the training that uses it, and what a training run on it would meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dynbench.config.digest import NOT_IDENTITY, changed, config_digest
from dynbench.config.held import copies_held
from dynbench.config.ranks import ranks_of
from dynbench.config.rules import makes_probe
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.plan_check import fitting_batch, may_split, total_steps
from dynbench.engine.planning import build_problem
from dynbench.errors import BatchTooLarge, DynbenchError
from dynbench.probe.prober import run_probe
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import make_policy
from dynbench.workloads.registry import build_workload

log = logging.getLogger(__name__)

NOT_PROBED = (
    *NOT_IDENTITY,
    *(
        "schedule",
        "analysis",
        "probe.run",
        "train.eval_every",
        "train.eval_samples",
        "train.exposed",
        "train.memory_parts",
    ),
    "launch.timeout_s",
)
"""Keys that arms may differ in without a probe measuring anything else."""
OF_SPLITS = ("sync", "compress")
"""Sections under which a further micro-batch is timed, and nothing else; the strategy and its options also decide who
trains, and what ranks hold."""


def wants_probe(config: Config) -> bool:
    """Whether a probe comes first, see `makes_probe`."""
    return makes_probe(config, on_gpus=config.launch.device != "cpu" and this_machine().gpus > 0)


def with_probe(config: Config, store: RunStore, report: Callable[[str], None] = log.info) -> Config:
    """The configuration with `probe.run` naming a probe made just now, where one is wanted; else as it is.

    Raises:
        DynbenchError: as `run_probe`.
    """
    if not wants_probe(config):
        return config
    run = run_probe(config, store, report=report)
    report(f"probed: {run.path}")
    return using_probe(config, run.id)


def using_probe(config: Config, run: str | None) -> Config:
    """The configuration with `probe.run` set."""
    return config.model_copy(update={"probe": config.probe.model_copy(update={"run": run})})


def splits(config: Config) -> bool:
    """Whether ranks may have several micro-batches in a step, so that what a further one costs decides plans."""
    return config.schedule.micro_batches != 1


def probe_identity(config: Config, store: RunStore, *, with_splits: bool) -> tuple[int, str, float, str]:
    """Equal for configurations of which a probe would measure the same.

    Args:
        config: settings as asked for.
        store: the registry.
        with_splits: whether what a further micro-batch costs counts.

    Raises:
        DynbenchError: as `resolve`.
    """
    resolved = resolve(config, this_machine(), store)
    digest = config_digest(resolved.config, NOT_PROBED if with_splits else NOT_PROBED + OF_SPLITS)
    held = copies_held(resolved.config, ranks_of(resolved.config, resolved.world_size), in_step=True)
    return resolved.workers, resolved.config.sync.name, held, digest


@dataclass(frozen=True, slots=True)
class NextTraining:
    """The dynamic run that a probe was made for.

    Attributes:
        global_batch: as asked for.
        steps: of the run, warm-up included.
        stopped_by: the first step that does not fit, or why there is none, in words; None where all fit.
        fitting_batch: the global batch asked for, or the largest one found below it with which all steps fit; None
            where there is none.
        split_fits: whether all steps fit with as many micro-batches as they need.
    """

    global_batch: int
    steps: int
    stopped_by: str | None
    fitting_batch: int | None
    split_fits: bool

    @property
    def instead(self) -> Mapping[str, object] | None:
        """Settings with which the run ends well, by dotted key; None where nothing is known to help."""
        if self.stopped_by is None:
            return {}
        if self.fitting_batch is not None:
            return {"train.global_batch": self.fitting_batch}
        return {"schedule.micro_batches": "auto"} if self.split_fits else None


def next_training(config: Config, probe: Run, store: RunStore) -> NextTraining:
    """What `train --mode dynamic --probe PROBE` would meet with the settings of the probe.

    Settings that training would refuse stop it too: what was probed is worth showing nevertheless.
    """
    try:
        return _planned(config, probe, store)
    except DynbenchError as error:
        return NextTraining(config.train.global_batch, total_steps(config), error.message, None, split_fits=False)


def _planned(config: Config, probe: Run, store: RunStore) -> NextTraining:
    dynamic = changed(config, {"schedule.mode": "dynamic", "schedule.capacity": None, "probe.run": probe.id})
    resolved = resolve(dynamic, this_machine(), store)
    config, workload = resolved.config, build_workload(resolved.config)
    multiple = config.workload.pad_to_multiple_of
    assert isinstance(multiple, int), "resolved"
    train, root = workload.train, store.root
    problem = build_problem(config, train.lengths, resolved.workers, multiple, root, workload.positions, train.second)
    asked, steps = config.train.global_batch, total_steps(config)
    misfit = make_policy(config.schedule.policy_name, problem).misfit(steps)
    if misfit is None:
        return NextTraining(asked, steps, None, asked, split_fits=True)
    if not isinstance(misfit, BatchTooLarge):
        return NextTraining(asked, steps, misfit.message, None, split_fits=False)
    found = fitting_batch(config, problem)
    batch = None if found is None else found.global_batch
    return NextTraining(asked, steps, misfit.message, batch, split_fits=may_split(config, problem))
