"""A module run on ranks: started with their environment, watched, stopped by signals, none left behind."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.api import SignalException

from dynbench.config.schema import Launch
from dynbench.engine.cause import root_cause
from dynbench.engine.launching.leftovers import collect_logs, marked_environment, stop_leftovers
from dynbench.engine.launching.torchrun import run_torchrun, thread_environment, torchrun_argv
from dynbench.errors import DynbenchError, Interrupted, WorkerFailed
from dynbench.runs.run import Run
from dynbench.signals import handled

_KEPT = "What was measured until then is kept."


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


def launch_ranks(module: str, runs: Sequence[Run], launch: Launch) -> RanksEnded:
    """Run this node's ranks to their end; afterwards none is left, and their output lies in `logs/` of every run.

    Args:
        module: what each rank runs, with the run folders as its arguments; see `engine.rank.launched`.
        runs: the run, or those of arms that share the launch; ranks keep why they ended in the first.
        launch: resolved: ranks, nodes, threads.

    Raises:
        Interrupted: a signal stopped them.
    """
    assert isinstance(launch.threads, int), "resolved"
    argv = torchrun_argv(module, [run.path for run in runs], launch)
    environment = {**thread_environment(launch.threads), **marked_environment(runs[0])}
    try:
        with handled(_stop):
            return RanksEnded(run_torchrun(argv, environment))
    except SignalException as stopped:
        raise Interrupted(f"stopped by {stopped.sigval.name}", _KEPT, signum=int(stopped.sigval)) from None
    except WorkerFailed as lost:
        return RanksEnded({}, lost)
    finally:
        with handled(signal.SIG_IGN):
            stop_leftovers(module, runs[0])
            collect_logs(runs)


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    """Raises what torchrun's own handlers raise, for until it has installed them."""
    raise SignalException(f"stopped by signal {signum}", sigval=signal.Signals(signum))
