"""Launching a run: decided, checked, its folder made, its ranks run to their end, its record finished."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.api import SignalException

from dynbench.config.dump import dump_config
from dynbench.config.schema import Config
from dynbench.engine.failure import log_file, root_cause
from dynbench.engine.launching.asked import launch_warnings
from dynbench.engine.launching.leftovers import stop_leftover_workers
from dynbench.engine.launching.logs import collect_logs
from dynbench.engine.launching.progress import OnProgress, ProgressReader
from dynbench.engine.launching.resolve import Machine, Resolved, resolve, this_machine
from dynbench.engine.launching.torchrun import run_torchrun, torchrun_argv, worker_environment
from dynbench.engine.plan_check import check_plan
from dynbench.engine.rank.nodes import settle
from dynbench.engine.rank.rank_facts import merge_facts
from dynbench.engine.rank.rank_warnings import read_warnings
from dynbench.errors import EXIT_OK, DynbenchError, Interrupted, NothingFits, WorkerFailed
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.provenance import collect
from dynbench.runs.reserve import release
from dynbench.runs.run import Run
from dynbench.runs.run_record import Failure
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore
from dynbench.workloads.inputs import check_batch

_log = logging.getLogger(__name__)
_KEPT = "What was measured until then is kept."
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    name: str | None = None,
    replace: bool = False,
    machine: Machine | None = None,
    asked: Config | None = None,
) -> LaunchPlan:
    """What `launch_training` would do with the same arguments.

    Raises:
        ConfigError, DataError, UsageError, RunLookupError, NothingFits: as `launch_training`, before anything is
            measured.
    """
    if config.launch.node_rank == 0:
        store.check_name(name, replace)
    check_batch(config)
    resolved = resolve(config, machine or this_machine(), store)
    check_plan(resolved.config, resolved.workers, store.root)
    run_path = store.root / f"<UTC time>-{resolved.config.schedule.policy_name}-<random>"
    command = ("torchrun", *torchrun_argv(resolved.config, run_path))
    environment = worker_environment(resolved.config.launch)
    warnings = () if asked is None else tuple(launch_warnings(asked, resolved, store.root))
    return LaunchPlan(resolved, run_path, command, environment, warnings)


def launch_training(
    config: Config,
    store: RunStore,
    *,
    name: str | None = None,
    replace: bool = False,
    argv: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
    asked: Config | None = None,
) -> Run:
    """Train under torchrun and return the finished run.

    Args:
        config: what to train; `auto` is decided here.
        store: registry that the run is put into.
        name: name of the run.
        replace: take the name over from an older run.
        argv: the command line to record.
        on_progress: called from a thread when steps were completed.
        asked: the settings as asked for, for what is warned of; None where that has been done.

    Raises:
        ConfigError, UsageError, RunLookupError: settings that cannot work; nothing was made.
        DataError: a file that cannot be used; nothing was made, unless the file is large.
        NothingFits: capacities that cannot hold the batch (nothing was made), or out of memory.
        WorkerFailed: a rank failed.
        Interrupted: a signal stopped the run.

    The last three, when there is a run folder, come after its record is finished and carry it as `run_path`.
    """
    plan = plan_launch(config, store, name=name, replace=replace, asked=asked)
    run = create_run(plan.resolved, store, name=name, replace=replace, argv=argv, warnings=plan.warnings)
    ended = RanksEnded({})
    error: DynbenchError | None = None
    try:
        with _signals_raise():
            run.update(status=Status.RUNNING)
            ended = run_ranks(run, plan.resolved, on_progress)
    except SignalException as stopped:
        error = Interrupted(f"stopped by {stopped.sigval.name}", _KEPT, signum=int(stopped.sigval))
    except BaseException as unexpected:
        finish(run, DynbenchError(f"{type(unexpected).__name__}: {unexpected}"))
        raise
    settled = settle(run)
    if ended.badly:
        error = root_cause(settled.run, ended.exit_codes, ended.lost)
    if settled.ours:
        for warning in read_warnings(settled.run):
            _log.warning(warning)
        finish(settled.run, error)
    if error is not None:
        error.run_path = settled.run.path
        raise error
    return settled.run


def create_run(
    resolved: Resolved,
    store: RunStore,
    *,
    name: str | None,
    replace: bool,
    argv: Sequence[str] | None,
    warnings: Sequence[str],
) -> Run:
    """The run's folder with its configuration, provenance and warnings; of several nodes, the first has the name.

    Raises:
        RunLookupError: the name is in use.
        UsageError: the results folder cannot be written.
    """
    config = resolved.config
    ours = name if config.launch.node_rank == 0 else None
    run = store.create("train", config.schedule.policy_name, name=ours, replace=replace, argv=argv)
    write_text(run.config_file, dump_config(config))
    write_json(run.env_file, collect(config, resolved.decisions, data={}))
    for warning in warnings:
        _log.warning(warning)
    run.update(warnings=list(warnings))
    return run


@dataclass(frozen=True, slots=True)
class RanksEnded:
    """How this node's ranks ended."""

    exit_codes: Mapping[int, int]
    """Of those that failed, by rank, negative for a signal."""
    lost: WorkerFailed | None = None
    """Set where torchrun gave up by itself."""

    @property
    def badly(self) -> bool:
        """Whether anything went wrong."""
        return bool(self.exit_codes) or self.lost is not None


def run_ranks(run: Run, resolved: Resolved, on_progress: OnProgress | None) -> RanksEnded:
    """Run this node's ranks to their end.

    Raises:
        SignalException: a signal stopped the run.
    """
    config = resolved.config
    total_steps = config.train.warmup_steps + config.train.steps
    try:
        ranks = range(resolved.world_size if config.launch.nnodes == 1 else 1)
        with ProgressReader(run, ranks, total_steps, on_progress):
            return RanksEnded(run_torchrun(torchrun_argv(config, run.path), worker_environment(config.launch)))
    except WorkerFailed as error:
        return RanksEnded({}, error)
    finally:
        with _signals_ignored():
            stop_leftover_workers(run)
            collect_logs(run)


def finish(run: Run, error: DynbenchError | None) -> None:
    """Write how the run ended; signals wait until that is done."""
    with _signals_ignored():
        release(run.path)
        merge_facts(run)
        run.update(warnings=[*run.record().warnings, *read_warnings(run)])
        if error is None:
            run.update(status=Status.COMPLETED, exit_code=EXIT_OK)
            return
        rank = error.rank if isinstance(error, WorkerFailed) else None
        log = None if rank is None else str(log_file(run, rank).relative_to(run.path))
        run.update(
            status=_status_of(error),
            exit_code=error.exit_code,
            failure=Failure(kind=error.kind, message=error.message, rank=rank, log=log),
        )


def _status_of(error: DynbenchError) -> Status:
    if isinstance(error, Interrupted):
        return Status.INTERRUPTED
    return Status.OOM if isinstance(error, NothingFits) else Status.FAILED


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Until torchrun installs handlers of its own, signals raise what it raises; the old handlers come back."""

    def stop(signum: int, _frame: FrameType | None) -> NoReturn:
        raise SignalException(f"stopped by signal {signum}", sigval=signal.Signals(signum))

    before = {signum: signal.signal(signum, stop) for signum in _SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Let a short piece of work end, however impatient the user is."""
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in _SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
