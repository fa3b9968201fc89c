"""Ranks started by torchrun, by srun, or by this process."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import get_args_parser, run

from dynbench.config.schema import Config, Launch
from dynbench.errors import WorkerFailed
from dynbench.signals import outlives_terminal

SHUTDOWN_TIMEOUT_S = 10
"""How long ranks that were asked to stop may take, before they are killed."""


def ranks_from_environment(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(ranks on this node, ranks in all) set by torchrun or srun; None where dynbench has to launch them itself."""
    if {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= environment.keys():
        world_size = int(environment["WORLD_SIZE"])
        return int(environment.get("LOCAL_WORLD_SIZE", world_size)), world_size
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1 and "SLURM_PROCID" in environment:
        nodes = int(environment.get("SLURM_STEP_NUM_NODES", "1"))
        return max(1, tasks // nodes), tasks
    return None


def started_as_rank(config: Config) -> bool:
    """Whether torchrun or srun has started this process as one of several ranks.

    Rendezvous settings mean that srun starts one launcher per node instead.
    """
    wants_launcher = config.launch.nnodes > 1 or config.launch.rdzv_endpoint is not None
    return ranks_from_environment() is not None and ("RANK" in os.environ or not wants_launcher)


def torchrun_argv(module: str, paths: Sequence[Path], launch: Launch) -> list[str]:
    """The arguments of torchrun for ranks that each run `python -m module PATHS`; logs go into the first folder.

    Everything is said on torchrun's public command line, never through its internal objects. Restarts are off: a
    benchmark that lost a rank is over. Under nohup, SIGHUP stops no rank.
    """
    argv = ["--nproc-per-node", str(launch.nproc), *rendezvous_argv(launch)]
    argv += ["--max-restarts", "0", "--redirects", "3", "--log-dir", str(torchrun_log_dir(paths[0]))]
    if "--shutdown-timeout" in get_args_parser().format_usage():
        argv += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)]
    if outlives_terminal():
        argv += ["--signals-to-handle", "SIGTERM,SIGINT,SIGQUIT"]
    return [*argv, "-m", module, *map(str, paths)]


def rendezvous_argv(launch: Launch) -> list[str]:
    """How the nodes meet; a single node that was told nothing needs no meeting point."""
    if launch.nnodes == 1 and launch.rdzv_endpoint is None:
        return ["--standalone"]
    argv = ["--nnodes", str(launch.nnodes), "--node-rank", str(launch.node_rank)]
    if launch.rdzv_endpoint is not None:
        argv += ["--rdzv-backend", "c10d", "--rdzv-endpoint", launch.rdzv_endpoint]
    return argv if launch.rdzv_id is None else [*argv, "--rdzv-id", launch.rdzv_id]


def torchrun_log_dir(run_path: Path) -> Path:
    """Where torchrun keeps what a rank prints before it knows its rank."""
    return run_path / "logs" / "torchrun"


def thread_environment(threads: int) -> dict[str, str]:
    """Variables that processes with this many computing threads start with."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def run_torchrun(argv: Sequence[str], environment: Mapping[str, str]) -> dict[int, int]:
    """Run all ranks of this node to their end.

    Returns:
        Rank to exit code of the ranks that failed, negative for a signal; empty when all went well.

    Raises:
        SignalException: a signal reached this process; the ranks were told to stop and have been waited for.
        WorkerFailed: the nodes did not meet, or lost each other.
    """
    with _changed_environment(environment), _quiet_elastic_logs():
        try:
            run(get_args_parser().parse_args(list(argv)))  # type: ignore[no-untyped-call]  # torch's is untyped
        except ChildFailedError as error:
            return {rank: failure.exitcode for rank, failure in error.failures.items()}
        except json.JSONDecodeError as error:
            raise WorkerFailed(
                "a rank failed and could not say why: the file for its reason is torn", "Is the disk full?"
            ) from error
        except (RendezvousError, DistError) as error:
            raise WorkerFailed(
                f"the nodes did not meet, or lost each other: {error}",
                "Check --rdzv-endpoint, and that every node was started with the same --nnodes and --rdzv-id.",
            ) from error
    return {}


@contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """The given variables, undone afterwards together with those that torchrun sets."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _quiet_elastic_logs() -> Iterator[None]:
    """Torchrun's own report of failures is replaced by ours, unless details were asked for.

    Its loggers have levels of their own, so that one above them does not decide.
    """
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    levels = {name: logging.getLogger(name).level for name in names}
    quiet = logging.root.getEffectiveLevel() > logging.DEBUG
    for name in names if quiet else ():
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
