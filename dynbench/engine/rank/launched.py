"""One launched rank from its start to its end, whatever it does: `python -m MODULE RUN_FOLDER…`.

A module that `launch_ranks` runs ends with `if __name__ == "__main__": run_as_rank(work)`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.errors import record

from dynbench.config.ranks import shared_ranks
from dynbench.config.schema import Config
from dynbench.engine.failure import log_file, record_failure
from dynbench.engine.rank.nodes import meet
from dynbench.engine.rank.rank_facts import keep_warnings, tell_failure
from dynbench.engine.rank.rank_process import (
    RankContext,
    StopFlag,
    die_with_parent,
    exit_now,
    process_group,
    redirect_output,
    set_threads,
    set_up_logging,
)
from dynbench.engine.whereabouts import MEETING
from dynbench.runs.run import Run

Work = Callable[[Sequence[Run], Sequence[Config], RankContext, StopFlag], None]
"""What all ranks do together, within their process group, for the runs of the launch, each with its configuration;
where the flag says that a signal came, it ends with `SystemExit`, 128 plus the signal's number."""


def run_as_rank(work: Work) -> NoReturn:
    """Do the work as the rank that the environment names, and end this process with its exit code."""
    code = 1
    try:
        _main(work, [Run(Path(folder)) for folder in sys.argv[1:]])
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        with suppress(OSError):  # a full disk, also for the log
            traceback.print_exc()
    exit_now(code)


@record
def _main(work: Work, runs: Sequence[Run]) -> None:
    first = runs[0]
    die_with_parent(first.record().pid)
    stop = StopFlag()
    context = RankContext.from_environment(first.config().launch.device)
    redirect_output(log_file(first, context.rank))
    _take_part(work, runs, context, stop)


def _take_part(work: Work, runs: Sequence[Run], context: RankContext, stop: StopFlag) -> None:
    """Do the work in the process group, recording in the first run why it ended if it did before its time."""
    try:
        configs = [run.config() for run in runs]
        launch = configs[0].launch
        ranks = shared_ranks(configs, context.world_size)
        set_up_logging(context, ranks)
        keep_warnings(runs[0], context, ranks)
        set_threads(launch)
        context.whereabouts.keep(runs[0], context.rank)
        context.whereabouts.at(MEETING)
        with process_group(context, launch):
            try:
                if launch.nnodes > 1:
                    runs = [meet(run, context) for run in runs]
                    context.whereabouts.keep(runs[0], context.rank)
                work(runs, configs, context, stop)
                context.whereabouts.arrived()
            except BaseException as error:
                tell_failure(runs[0], context.rank, error)
                raise
    except BaseException as error:
        record_failure(runs[0], context.rank, error)
        raise
