"""Launching a run: decided, checked, its folder made, its ranks run to their end, its record finished."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from dynbench.config.schema import Config
from dynbench.engine.launching.asked import launch_warnings
from dynbench.engine.launching.launch_ranks import launch_ranks
from dynbench.engine.launching.progress import OnProgress, ProgressReader
from dynbench.engine.launching.resolve import Machine, Resolved, resolve, this_machine
from dynbench.engine.launching.torchrun import thread_environment, torchrun_argv
from dynbench.engine.plan_check import check_plan
from dynbench.engine.rank.nodes import settle
from dynbench.engine.rank.rank_facts import merge_facts
from dynbench.engine.rank.rank_warnings import read_warnings
from dynbench.runs.recorder import Recording, new_run, recorded
from dynbench.runs.reserve import release
from dynbench.runs.run import Run
from dynbench.runs.store import Naming, RunStore
from dynbench.signals import handled
from dynbench.workloads.inputs import check_batch

_log = logging.getLogger(__name__)
WORKER_MODULE = "dynbench.engine.rank.worker"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a launch would do; making it touches nothing."""

    resolved: Resolved
    run_path: Path
    """Folder of the run; time and suffix are set when it is made."""
    command: tuple[str, ...]
    """The torchrun command line."""
    environment: dict[str, str]
    """Variables that the ranks start with."""
    warnings: tuple[str, ...]
    """What can run but says less than it seems, and settings that nothing reads."""


def plan_launch(
    config: Config,
    store: RunStore,
    *,
    machine: Machine | None = None,
    asked: Config | None = None,
    **naming: Unpack[Naming],
) -> LaunchPlan:
    """What `launch_training` would do with the same arguments.

    Raises:
        ConfigError, DataError, UsageError, RunLookupError, NothingFits: as `launch_training`, before anything is
            measured.
    """
    if config.launch.node_rank == 0:
        store.check_name(naming.get("name"), naming.get("replace", False))
    check_batch(config)
    resolved = resolve(config, machine or this_machine(), store)
    check_plan(resolved.config, resolved.workers, store.root)
    run_path = store.root / f"<UTC time>-{resolved.config.schedule.policy_name}-<random>"
    launch = resolved.config.launch
    assert isinstance(launch.threads, int), "resolved"
    command = ("torchrun", *torchrun_argv(WORKER_MODULE, run_path, launch))
    environment = thread_environment(launch.threads)
    warnings = () if asked is None else tuple(launch_warnings(asked, resolved, store.root))
    return LaunchPlan(resolved, run_path, command, environment, warnings)


def launch_training(
    config: Config,
    store: RunStore,
    *,
    on_progress: OnProgress | None = None,
    asked: Config | None = None,
    **naming: Unpack[Naming],
) -> Run:
    """Train under torchrun and return the finished run.

    Args:
        config: what to train; `auto` is decided here.
        store: registry that the run is put into.
        on_progress: called from a thread when steps were completed.
        asked: the settings as asked for, for what is warned of; None where that has been done.
        naming: what the run is called.

    Raises:
        ConfigError, UsageError, RunLookupError: settings that cannot work; nothing was made.
        DataError: a file that cannot be used; nothing was made, unless the file is large.
        NothingFits: capacities that cannot hold the batch (nothing was made), or out of memory.
        WorkerFailed: a rank failed.
        Interrupted: a signal stopped the run.

    The last three, when there is a run folder, come after its record is finished and carry it as `run_path`.
    """
    plan = plan_launch(config, store, asked=asked, **naming)
    run = create_run(plan.resolved, store, plan.warnings, **naming)
    launch, train = plan.resolved.config.launch, plan.resolved.config.train
    ranks = range(plan.resolved.world_size if launch.nnodes == 1 else 1)
    with recorded(run) as recording:
        try:
            with ProgressReader(run, ranks, train.warmup_steps + train.steps, on_progress):
                ended = launch_ranks(WORKER_MODULE, run, launch)
        finally:
            with handled(signal.SIG_IGN):
                settled = settle(run)
                recording.run, recording.ours = settled.run, settled.ours
                gather_said(recording)
                for warning in recording.warnings:
                    _log.warning("%s", warning)
        if failure := ended.failure(settled.run):
            raise failure
    return recording.run


def gather_said(recording: Recording) -> None:
    """Put what only the ranks know into the run's own files: their facts, and what rank 0 warned of."""
    if recording.ours:
        release(recording.run.path)
        merge_facts(recording.run)
        recording.warnings += read_warnings(recording.run)


def create_run(resolved: Resolved, store: RunStore, warnings: Sequence[str], **naming: Unpack[Naming]) -> Run:
    """The run's folder with its configuration, provenance and warnings; of several nodes, the first has the name.

    Raises:
        RunLookupError: the name is in use.
        UsageError: the results folder cannot be written.
    """
    config = resolved.config
    if config.launch.node_rank > 0:
        naming["name"] = None
    return new_run(
        store,
        "train",
        config.schedule.policy_name,
        config,
        decisions=resolved.decisions,
        data={},
        warnings=warnings,
        **naming,
    )
