"""Launching a run: decided, checked, its folder made, its ranks run to their end, its record finished.

`train` started inside torchrun or srun launches nothing: this process is a rank (`join_training`).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Unpack

from dynbench.config.part_rules import has_lengths
from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config, decided
from dynbench.engine.failure import MEMORY_HINT, is_aftermath, is_out_of_memory, rank_title, root_cause
from dynbench.engine.launching.progress import OnProgress, ProgressReader
from dynbench.engine.launching.resolve import Machine, Resolved, launch_warnings, resolve, this_machine
from dynbench.engine.launching.torchrun import launch_ranks, ranks_from_environment, thread_environment, torchrun_argv
from dynbench.engine.plan_check import check_plan
from dynbench.engine.rank.evaluation import settle_models
from dynbench.engine.rank.exchange import gather_objects, wait_for_all
from dynbench.engine.rank.launched import settle
from dynbench.engine.rank.rank_facts import keep_warnings, merge_facts, read_warnings, tell_failure
from dynbench.engine.rank.rank_process import RankContext, StopFlag, process_group, set_threads
from dynbench.engine.turn_order import Turns
from dynbench.errors import DynbenchError, NothingFits, UsageError, WorkerFailed, user_error
from dynbench.runs.atomic import release
from dynbench.runs.recorder import Recording, new_run, recorded
from dynbench.runs.run import Run
from dynbench.runs.store import Naming, RunStore
from dynbench.signals import handled
from dynbench.workloads.inputs import check_batch, check_inputs
from dynbench.workloads.own_code import remember_run

_log = logging.getLogger(__name__)
WORKER_MODULE = "dynbench.engine.rank.worker"
_BASE_PORT = 29500
_PORTS = 10_000


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
    """What `launch_arms` would do with an arm.

    Raises:
        ConfigError, DataError, UsageError, RunLookupError, NothingFits: as `launch_arms`, before anything is
            measured.
    """
    if config.launch.node_rank == 0:
        store.check_name(naming.get("name"), naming.get("replace", False))
    store.check_place()
    splits = check_inputs(config)
    resolved = resolve(config, machine or this_machine(), store)
    check_batch(resolved.config, splits)
    check_plan(resolved.config, resolved.workers, store.root)
    run_path = store.root / f"<UTC time>-{resolved.config.plan_name.replace(' ', '-')}-<random>"
    launch = resolved.config.launch
    command = ("torchrun", *torchrun_argv(WORKER_MODULE, [run_path], launch))
    environment = thread_environment(decided(launch.threads))
    warnings = () if asked is None else tuple(launch_warnings(asked, resolved, store.root))
    return LaunchPlan(resolved, run_path, command, environment, warnings)


def launch_arms(
    arms: Sequence[tuple[Config, Naming]],
    store: RunStore,
    *,
    turns: Turns | None = None,
    on_progress: OnProgress | None = None,
    on_made: Callable[[Sequence[Run]], None] = lambda _: None,
    asked: Config | None = None,
) -> list[Run]:
    """Train one arm, or several that take turns in one launch, and return the finished runs.

    Where one arm of several ends the launch, its run says how, and the others are interrupted.

    Args:
        arms: what to train, and what each run is called; `auto` is decided here.
        store: registry that the runs are put into.
        turns: how several arms take turns; None for one.
        on_progress: called from a thread when steps were completed.
        on_made: called with the run folders before anything is launched.
        asked: the first settings as given by the user, for what is warned of; None where that has been done.

    Raises:
        ConfigError, UsageError, RunLookupError: settings that cannot work; nothing was made.
        DataError: a file that cannot be used; nothing was made, unless the file is large.
        NothingFits: capacities that cannot hold the batch (nothing was made), or out of memory.
        WorkerFailed: a rank failed.
        Interrupted: a signal stopped the run.

    The last three, when there are run folders, come after their records are finished and carry that of the arm that was
    on as `run_path`, and its position as `arm`.
    """
    plans = [
        plan_launch(config, store, asked=None if number else asked, **naming)
        for number, (config, naming) in enumerate(arms)
    ]
    launch, train = plans[0].resolved.config.launch, plans[0].resolved.config.train
    ranks = [range(plan.resolved.world_size if launch.nnodes == 1 else 1) for plan in plans]
    unit = "tokens" if has_lengths(plans[0].resolved.config) else "samples"
    with ExitStack() as stack:
        recordings = []
        for plan, (_, naming) in zip(plans, arms, strict=True):
            run = create_run(plan.resolved, store, plan.warnings, **naming)
            recordings.append(stack.enter_context(recorded(run)))
        runs = [recording.run for recording in recordings]
        if turns is not None:
            turns.write(runs[0].path)
        on_made(runs)
        try:
            steps = train.warmup_steps + train.steps
            with ProgressReader(runs, ranks, steps, on_progress, unit, train.warmup_steps):
                ended = launch_ranks(WORKER_MODULE, runs, launch)
        finally:
            with handled(signal.SIG_IGN):
                _settle(recordings)
        if failure := ended.failure(recordings[0].run):
            if turns is not None and failure.arm is not None:
                _blame(failure, turns.arms[failure.arm], recordings, failure.arm)
            raise failure
    return [recording.run for recording in recordings]


def _settle(recordings: Sequence[Recording]) -> None:
    """After the ranks have ended: the folders that the runs have become, with what only the ranks know."""
    for recording in recordings:
        recording.run, recording.ours = settle(recording.run)
    for recording in recordings:
        collect_facts(recording, recordings[0].run)
    for warning in dict.fromkeys(warning for recording in recordings for warning in recording.warnings):
        _log.warning("%s", warning)


@contextmanager
def warnings_said_once() -> Iterator[None]:
    """While launches of one command follow each other: what an earlier one has warned of is not said again."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in said
        said.add(text)
        return new

    _log.addFilter(is_new)
    try:
        yield
    finally:
        _log.removeFilter(is_new)


def _blame(failure: DynbenchError, name: str, recordings: Sequence[Recording], arm: int) -> None:
    """Let the arm that was on have ended the launch, and the others be interrupted by it."""
    failure.message = f"arm {name}: {failure.message}"
    failure.run_path = recordings[arm].run.path
    if isinstance(failure, WorkerFailed) and failure.log is not None:
        failure.log = recordings[arm].run.logs_dir / failure.log.name
    for position, recording in enumerate(recordings):
        if position != arm:
            recording.ended_by = f"the launch that it shared was ended: {failure.message}"


def collect_facts(recording: Recording, first: Run) -> None:
    """Put into the run's own files what only the ranks know: their facts, and rank 0's warnings; tidy up after them.

    Args:
        recording: the run.
        first: the first run of its launch, where the warnings are stored.
    """
    if recording.ours:
        release(recording.run.path)
        settle_models(recording.run.path)
        merge_facts(recording.run)
        recording.warnings += read_warnings(first)


def create_run(resolved: Resolved, store: RunStore, warnings: Sequence[str], **naming: Unpack[Naming]) -> Run:
    """The run's folder with its configuration, provenance and warnings; of several nodes, the first has the name.

    Raises:
        RunLookupError: the name is in use.
        UsageError: the results folder cannot be written.
    """
    config = resolved.config
    if config.launch.node_rank > 0:
        naming["name"] = None
    slug, decisions = config.plan_name, resolved.decisions
    run = new_run(store, "train", slug, config, decisions=decisions, data={}, warnings=warnings, **naming)
    remember_run(run.id, config.workload)
    return run


def join_training(
    config: Config, store: RunStore, *, asked: Config | None = None, **naming: Unpack[Naming]
) -> Run | None:
    """Train as the rank that the environment names; rank 0 makes the run folder and finishes it.

    Returns:
        The run on rank 0, None on the others.

    Raises:
        DynbenchError: as `launch_arms`; on every rank that sees the failure.
    """
    os.environ.update(slurm_as_torchrun(os.environ))
    try:
        return _join(config, store, asked, naming)
    except RuntimeError as error:
        if not is_aftermath(error):
            raise
        raise WorkerFailed(
            f"rank {os.environ['RANK']} ended because another one did", "The message of that rank says why."
        ) from error


def _join(config: Config, store: RunStore, asked: Config | None, naming: Naming) -> Run | None:
    from dynbench.engine.rank.worker import train  # which a launcher has no need of

    stop = StopFlag()
    resolved = resolve(config, changed(this_machine(), ranks_given=ranks_from_environment()), store)
    check_plan(resolved.config, resolved.workers, store.root)
    context = RankContext.from_environment(resolved.config.launch.device)
    ranks = ranks_of(resolved.config, resolved.world_size)
    if not context.speaks(ranks):
        logging.getLogger("dynbench").setLevel(logging.WARNING)
    set_threads(resolved.config.launch)
    with process_group(context, resolved.config.launch):
        made = None
        if context.is_first:
            warnings = launch_warnings(asked, resolved, store.root, attached=True)
            made = create_run(resolved, store, warnings, **naming).id
        run = Run(store.root / str(gather_objects(made)[0]))
        with recorded(run) if context.is_first else nullcontext() as recording:
            try:
                keep_warnings(run, context, ranks)
                context.position.open(run, context.rank)
                train([run], [resolved.config], context, stop)
                wait_for_all()
                context.position.remove()
            except BaseException as error:
                tell_failure(run, context.rank, error)
                reported = _reported(run, context, error)
                if reported is error:
                    raise
                raise reported from error
            finally:
                if recording is not None:
                    collect_facts(recording, recording.run)
    return run if context.is_first else None


def slurm_as_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """Torchrun's variables from srun's; empty where torchrun has set them.

    Raises:
        UsageError: the first node cannot be found out.
    """
    if "RANK" in environment:
        return {}
    job = int(environment.get("SLURM_JOB_ID", "0"))
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": environment.get("MASTER_ADDR") or _first_node(environment),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(_BASE_PORT + job % _PORTS),
    }


def _first_node(environment: Mapping[str, str]) -> str:
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if nodes and "[" not in nodes:
        return nodes.partition(",")[0]
    try:
        hosts = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            f"srun: the first of the nodes {nodes!r} cannot be found out ({error})", "Set MASTER_ADDR to its name."
        ) from None
    return hosts.stdout.split()[0]


def _reported(run: Run, context: RankContext, error: BaseException) -> BaseException:
    """What ended the run, as this rank tells it; rank 0 speaks for all of them."""
    if context.is_first:
        return user_error(error) if isinstance(error, SystemExit | KeyboardInterrupt) else root_cause(run, {})
    if is_out_of_memory(error):
        *_, reason = str(error).splitlines()[:1] or [type(error).__name__]  # a MemoryError may say nothing
        return NothingFits(f"{rank_title(run, context.rank)}: {reason}", MEMORY_HINT)
    return error
