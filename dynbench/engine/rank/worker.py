"""What one rank of a training runs: `python -m dynbench.engine.rank.worker RUN_FOLDER`."""

from __future__ import annotations

import logging
import sys

from dynbench.config.schema import Config
from dynbench.engine.rank.agreement import check_same_config, check_same_data
from dynbench.engine.rank.exchange import wait_patiently
from dynbench.engine.rank.launched import run_as_rank
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.rank_facts import write_facts
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.real import real_loop
from dynbench.engine.rank.virtual import virtual_loop
from dynbench.runs.run import Run
from dynbench.workloads.base import Workload
from dynbench.workloads.registry import build_workload

_log = logging.getLogger(__name__)


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


if __name__ == "__main__":
    run_as_rank(train)
