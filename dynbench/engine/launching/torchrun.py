"""Ranks started by torchrun with their environment, watched, stopped by signals, none left behind."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import get_args_parser, run

from dynbench.config.schema import Config, Launch, decided
from dynbench.engine.failure import root_cause
from dynbench.errors import DynbenchError, Interrupted, WorkerFailed
from dynbench.runs.run import Run
from dynbench.signals import handled, outlives_terminal

SHUTDOWN_TIMEOUT_S = 10
"""How long ranks may take to stop after a signal, before they are killed."""
EARLY_LOG = "launch.log"
GRACE_S = 5.0
_POLL_S = 0.05
_RANK_OF = "DYNBENCH_RANK_OF"


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
    argv = ["--nproc-per-node", str(launch.nproc)]
    if launch.nnodes == 1 and launch.rdzv_endpoint is None:
        argv.append("--standalone")
    else:
        argv += ["--nnodes", str(launch.nnodes), "--node-rank", str(launch.node_rank)]
        argv += [] if launch.rdzv_endpoint is None else ["--rdzv-backend", "c10d"]
        options = {"--rdzv-endpoint": launch.rdzv_endpoint, "--rdzv-id": launch.rdzv_id}
        argv += [word for option, value in options.items() if value is not None for word in (option, value)]
    argv += ["--max-restarts", "0", "--redirects", "3", "--log-dir", str(torchrun_log_dir(paths[0]))]
    if "--shutdown-timeout" in get_args_parser().format_usage():
        argv += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)]
    if outlives_terminal():
        argv += ["--signals-to-handle", "SIGTERM,SIGINT,SIGQUIT"]
    return [*argv, "-m", module, *map(str, paths)]


def torchrun_log_dir(run_path: Path) -> Path:
    """Where torchrun keeps what a rank prints before it knows its rank."""
    return run_path / "logs" / "torchrun"


def thread_environment(threads: int) -> dict[str, str]:
    """Variables that processes with this many computing threads start with."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


@dataclass(frozen=True, slots=True)
class RanksEnded:
    """How this node's ranks ended."""

    exit_codes: Mapping[int, int]
    """Of those that failed, by rank, negative for a signal."""
    lost: WorkerFailed | None = None
    """Set where torchrun gave up by itself."""

    def failure(self, run: Run) -> DynbenchError | None:
        """What ended them badly, found among the ranks of the run; None where nothing did."""
        return root_cause(run, self.exit_codes, self.lost) if self.exit_codes or self.lost else None


def run_torchrun(argv: Sequence[str], environment: Mapping[str, str]) -> RanksEnded:
    """Run all ranks of this node to their end.

    Raises:
        SignalException: a signal reached this process; the ranks were stopped and have been waited for.
    """
    lost = None
    with _changed_environment(environment), _quiet_elastic_logs():
        try:
            run(get_args_parser().parse_args(list(argv)))  # type: ignore[no-untyped-call]  # torch's is untyped
        except ChildFailedError as error:
            return RanksEnded({rank: failure.exitcode for rank, failure in error.failures.items()})
        except (RendezvousError, DistError) as error:
            lost = WorkerFailed(
                f"the nodes did not meet, or lost each other: {error}",
                "Check --rdzv-endpoint, and that every node was started with the same --nnodes and --rdzv-id.",
            )
    return RanksEnded({}, lost)


@contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """The given variables, undone afterwards, as are those that torchrun sets."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _quiet_elastic_logs() -> Iterator[None]:
    """Torchrun's own report of failures is replaced by ours, unless details are wanted.

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


def collect_logs(runs: Sequence[Run]) -> None:
    """Keep what ranks printed before they opened their own log, remove torchrun's folder; every run gets all logs."""
    run, *others = runs
    folder = torchrun_log_dir(run.path)
    early = [path for path in sorted(folder.rglob("*.log")) if path.stat().st_size > 0]
    if early:
        with (run.logs_dir / EARLY_LOG).open("ab") as log:
            for path in early:
                log.write(f"--- local rank {path.parent.name}, {path.stem}\n".encode() + path.read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    for other in others:
        for path in run.logs_dir.glob("*.log"):
            shutil.copyfile(path, other.logs_dir / path.name)


def marked_environment(run: Run) -> dict[str, str]:
    """The variable by which ranks of this run, and what they start, are known."""
    return {_RANK_OF: str(run.path)}


def stop_leftovers(module: str, run: Run) -> None:
    """Ask ranks of this run to stop, and what they started, and kill those that have not after a while.

    torchrun waits for its ranks, but a second signal can make it give up waiting; and a rank that is killed cannot stop
    what it started, as a profiler. On systems without /proc nothing is looked for.
    """
    deadline = time.monotonic() + GRACE_S
    _signal(_processes(module, run), signal.SIGTERM)
    while (left := _processes(module, run)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal(left, signal.SIGKILL)


def rank_pids(module: str, run: Run) -> list[int]:
    """Live processes of this machine that run the module as a rank of this run."""
    return [pid for pid, is_rank in _processes(module, run).items() if is_rank]


def _processes(module: str, run: Run) -> dict[int, bool]:
    """Ranks of this run and what they started, by process id; whether it is a rank."""
    path, mark, found = os.fsencode(run.path), os.fsencode(f"{_RANK_OF}={run.path}"), {}
    for folder in Path("/proc").glob("[0-9]*"):
        command, environment = _words(folder / "cmdline"), _words(folder / "environ")
        is_rank = module.encode() in command and path in command
        # What the launcher itself started meanwhile has the mark, but no rank.
        if is_rank or (mark in environment and any(word.startswith(b"RANK=") for word in environment)):
            found[int(folder.name)] = is_rank
    return found


def _words(file: Path) -> list[bytes]:
    """What a file of /proc holds; nothing of a process that has ended, or is somebody else's."""
    with suppress(OSError):
        return file.read_bytes().split(b"\0")
    return []


def _signal(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def launch_ranks(module: str, runs: Sequence[Run], launch: Launch) -> RanksEnded:
    """Run this node's ranks to their end; afterwards none is left, and their output lies in `logs/` of every run.

    Args:
        module: what each rank runs, with the run folders as its arguments; see `engine.rank.launched`.
        runs: the run, or those of arms that share the launch; ranks keep why they ended in the first.
        launch: resolved: ranks, nodes, threads.

    Raises:
        Interrupted: a signal stopped them.
    """
    argv = torchrun_argv(module, [run.path for run in runs], launch)
    environment = {**thread_environment(decided(launch.threads)), **marked_environment(runs[0])}
    try:
        with handled(_stop):
            return run_torchrun(argv, environment)
    except SignalException as stopped:
        hint = "What was measured until then is kept."
        raise Interrupted(f"stopped by {stopped.sigval.name}", hint, signum=int(stopped.sigval)) from None
    finally:
        with handled(signal.SIG_IGN):
            stop_leftovers(module, runs[0])
            collect_logs(runs)


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    """Raises what torchrun's own handlers raise, for until it has installed them."""
    raise SignalException(f"stopped by signal {signum}", sigval=signal.Signals(signum))
