"""What one launched process runs: `python -m dynbench.engine.rank.worker RUN_FOLDER`."""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.errors import record

from dynbench.config.schema import Config
from dynbench.engine.failure import log_file, record_failure
from dynbench.engine.rank.agreement import check_same_config, check_same_data
from dynbench.engine.rank.exchange import wait_patiently
from dynbench.engine.rank.hearsay import tell_failure
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.nodes import meet
from dynbench.engine.rank.rank_facts import write_facts
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
from dynbench.engine.rank.rank_warnings import keep_warnings
from dynbench.engine.rank.real import real_loop
from dynbench.engine.rank.virtual import virtual_loop
from dynbench.runs.run import Run
from dynbench.workloads.base import Workload
from dynbench.workloads.registry import build_workload

_log = logging.getLogger(__name__)


@record
def main(run_path: Path) -> None:
    """One rank of a launched run, from its start to its end."""
    run = Run(run_path)
    die_with_parent(run.record().pid)
    stop = StopFlag()
    context = RankContext.from_environment(run.config().launch.device)
    redirect_output(log_file(run, context.rank))
    run_rank(run, context, stop)


def run_rank(run: Run, context: RankContext, stop: StopFlag) -> None:
    """Train as one rank of `run`, recording why it ended if it did before its time.

    Raises:
        SystemExit: a signal asked to stop; 128 plus its number, after the step in progress was recorded.
    """
    try:
        config = run.config()
        set_up_logging(context)
        keep_warnings(run, context)
        set_threads(config.launch)
        with process_group(context, config.launch):
            try:
                run = meet(run, context) if config.launch.nnodes > 1 else run
                train(run, config, context, stop)
            except BaseException as error:
                tell_failure(run, context.rank, error)
                raise
    except BaseException as error:
        record_failure(run, context.rank, error)
        raise


def train(run: Run, config: Config, context: RankContext, stop: StopFlag) -> None:
    """Load the workload, then run the loop of the launcher."""
    check_same_config(config)
    workload = load_workload(config, context)
    check_same_data(workload.train.fingerprint)
    memory = memory_meter(context.device)
    write_facts(run, config, context, workload, memory)
    _log.info("%d samples, %d ranks on %s", len(workload.train), context.world_size, context.device.type)
    make_loop = virtual_loop if config.launch.launcher == "virtual" else real_loop
    with make_loop(run, config, context, workload, memory, stop) as loop:
        loop.run()
    if stop.signum is not None:
        sys.exit(128 + stop.signum)


def load_workload(config: Config, context: RankContext) -> Workload:
    """The workload; each node's first rank fills the cache before the others read it.

    However long that takes, here or on another node, nobody gives up after `launch.timeout_s`.
    """
    if context.local_rank != 0:
        wait_patiently()
    workload = build_workload(config)
    if context.local_rank == 0:
        wait_patiently()
    wait_patiently()
    return workload


def run_process(run_path: Path) -> NoReturn:
    """Run `main` and end this process with its exit code."""
    code = 1
    try:
        main(run_path)
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        traceback.print_exc()
    exit_now(code)


if __name__ == "__main__":
    run_process(Path(sys.argv[1]))
