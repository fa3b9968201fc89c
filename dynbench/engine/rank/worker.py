"""What one rank of a training runs: `python -m dynbench.engine.rank.worker RUN_FOLDER…`, a run for each arm."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from dynbench.config.schema import Config
from dynbench.engine.failure import BUILDING, PREPARING
from dynbench.engine.rank.exchange import check_same, check_same_config, wait_for_all, wait_patiently
from dynbench.engine.rank.launched import run_as_rank
from dynbench.engine.rank.loop import Loop, real_loop
from dynbench.engine.rank.memory import MemoryMeter, arm_meter, check_room, memory_meter
from dynbench.engine.rank.optimizer_step import DTYPES, refuse_tf32
from dynbench.engine.rank.rank_facts import write_facts
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.engine.rank.turns import Switch, garbage_between_turns, play
from dynbench.engine.rank.virtual import VirtualLoop, virtual_loop
from dynbench.engine.turn_order import Turns, read_turns
from dynbench.runs.run import Run
from dynbench.workloads.base import Workload, packs
from dynbench.workloads.batches import check_rows
from dynbench.workloads.registry import build_workload, import_model_code
from dynbench.workloads.token_shards import already_checked

_log = logging.getLogger(__name__)
_SAME_DATA = "Point workload.data_path and the caches at the same data on every node."
MakeLoop = Callable[[Run, Config, RankContext, Workload, MemoryMeter], AbstractContextManager[Loop | VirtualLoop]]


def train(runs: Sequence[Run], configs: Sequence[Config], context: RankContext, stop: StopFlag) -> None:
    """Train the arms of a launch: one, or several that take turns."""
    turns = read_turns(runs[0].path)
    refuse_tf32()  # whatever the precision: the leak check is in fp32
    with ExitStack() as open_loops:
        players = _build(runs, configs, turns, context, open_loops)
        switch = None
        if turns is not None:
            open_loops.enter_context(garbage_between_turns())
            switch = Switch(players, context.device, context.position.at_arm, wait_for_all)
        play(configs[0].train, players, turns, stop, switch, context.position)
    if stop.signum is not None:
        sys.exit(128 + stop.signum)


def _build(
    runs: Sequence[Run], configs: Sequence[Config], turns: Turns | None, context: RankContext, open_loops: ExitStack
) -> list[Loop | VirtualLoop]:
    """The arms' loops, in the order of the runs; built in the order that the turns say."""
    launch = None if turns is None else turns.facts([run.id for run in runs])
    players: dict[int, Loop | VirtualLoop] = {}
    workloads: dict[tuple[object, ...], Workload] = {}
    for arm in [0] if turns is None else turns.building():
        if turns is not None:
            context.position.at_arm(arm)
        run, config = runs[arm], configs[arm]
        check_same_config(config)
        # Code of the user's own may keep something of the model.
        data = config.workload.model_dump_json(), config.train.seed, config.workload.runs_own_code and arm
        if data not in workloads:
            workloads[data] = load_workload(config, context)
        workload = workloads[data]
        check_same("data", {"fingerprint": workload.train.fingerprint}, _SAME_DATA)
        memory = memory_meter(context.device) if turns is None else arm_meter(context.device)
        half = DTYPES.get(config.train.precision)
        packed_rows = check_rows(workload, config.train.seed, context.device, half) if packs(workload) else None
        write_facts(run, config, context, workload, memory, launch, packed_rows)
        if not players:
            _log.info("%d samples, %d ranks on %s", len(workload.train), context.world_size, context.device.type)
        context.position.at(BUILDING)
        make_loop: MakeLoop = virtual_loop if config.launch.launcher == "virtual" else real_loop
        loop = open_loops.enter_context(make_loop(run, config, context, workload, memory))
        memory.leave()
        if not players:
            check_room(configs, loop.replica.model, context.device, run.path.parent)
        players[arm] = loop
    return [players[arm] for arm in range(len(runs))]


def load_workload(config: Config, context: RankContext) -> Workload:
    """The workload; each node's first rank fills the cache before the others read it.

    However long that takes, here or on another node, nobody gives up after `launch.timeout_s`. Whoever waits imports
    meanwhile what a model of a size of ours is made by.
    """
    context.position.at(PREPARING)
    makes_model = not config.workload.reads_model
    if context.local_rank != 0:
        if makes_model:
            import_model_code(config.workload)
        wait_patiently()
        with already_checked():
            workload = build_workload(config)
    else:
        workload = build_workload(config)
        wait_patiently()
        if makes_model:
            import_model_code(config.workload)
    wait_patiently()
    return workload


if __name__ == "__main__":
    run_as_rank(train)
