"""`train` started inside torchrun or srun: this process is a rank, and launches nothing."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace as changed
from typing import Unpack

from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config
from dynbench.engine.cause import root_cause
from dynbench.engine.failure import MEMORY_HINT, is_aftermath, is_out_of_memory, rank_title
from dynbench.engine.launching.asked import launch_warnings
from dynbench.engine.launching.resolve import Resolved, resolve, this_machine
from dynbench.engine.launching.run_launch import create_run, gather_said
from dynbench.engine.launching.torchrun import ranks_from_environment
from dynbench.engine.plan_check import check_plan
from dynbench.engine.rank.exchange import broadcast_text, wait_for_all
from dynbench.engine.rank.rank_facts import keep_warnings, tell_failure
from dynbench.engine.rank.rank_process import RankContext, StopFlag, process_group, set_threads
from dynbench.engine.rank.worker import train
from dynbench.errors import NothingFits, UsageError, WorkerFailed, told
from dynbench.runs.recorder import recorded
from dynbench.runs.run import Run
from dynbench.runs.store import Naming, RunStore

_BASE_PORT = 29500
_PORTS = 10_000


def join_training(
    config: Config, store: RunStore, *, asked: Config | None = None, **naming: Unpack[Naming]
) -> Run | None:
    """Train as the rank that the environment names; rank 0 makes the run folder and finishes it.

    Returns:
        The run on rank 0, None on the others.

    Raises:
        DynbenchError: as `launch.launch_training`; on every rank that sees the failure.
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
    stop = StopFlag()
    resolved = resolve(config, changed(this_machine(), ranks_given=ranks_from_environment()), store)
    check_plan(resolved.config, resolved.workers, store.root)
    context = RankContext.from_environment(resolved.config.launch.device)
    ranks = ranks_of(resolved.config, resolved.world_size)
    if not context.speaks(ranks):
        logging.getLogger("dynbench").setLevel(logging.WARNING)
    set_threads(resolved.config.launch)
    with process_group(context, resolved.config.launch):
        run = _agree_on_run(resolved, context, store, asked, naming)
        with recorded(run) if context.is_first else nullcontext() as recording:
            try:
                keep_warnings(run, context, ranks)
                context.whereabouts.keep(run, context.rank)
                train([run], [resolved.config], context, stop)
                wait_for_all()
                context.whereabouts.arrived()
            except BaseException as error:
                tell_failure(run, context.rank, error)
                reported = _reported(run, context, error)
                if reported is error:
                    raise
                raise reported from error
            finally:
                if recording is not None:
                    gather_said(recording, recording.run)
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


def _agree_on_run(
    resolved: Resolved, context: RankContext, store: RunStore, asked: Config | None, naming: Naming
) -> Run:
    run = None
    if context.is_first:
        warnings = launch_warnings(asked, resolved, store.root, attached=True)
        run = create_run(resolved, store, warnings, **naming)
    return Run(store.root / broadcast_text(run.id if run else None))


def _reported(run: Run, context: RankContext, error: BaseException) -> BaseException:
    """What ended the run, as this rank tells it; rank 0 speaks for all of them."""
    if context.is_first:
        return told(error) if isinstance(error, SystemExit | KeyboardInterrupt) else root_cause(run, {})
    if is_out_of_memory(error):
        *_, reason = str(error).splitlines()[:1] or [type(error).__name__]  # a MemoryError may say nothing
        return NothingFits(f"{rank_title(run, context.rank)}: {reason}", MEMORY_HINT)
    return error
