"""Whether a configuration can be planned in all its steps, found before anything is launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynbench.config.change import changed
from dynbench.config.schema import Config
from dynbench.engine.capacity_check import check_capacity, check_obeyed
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.known_data import data_at_hand, known_workload
from dynbench.engine.planning import build_problem
from dynbench.engine.run_check import check_steps
from dynbench.errors import NothingFits
from dynbench.schedule.policy import Problem, make_policy


def check_plan(config: Config, workers: int, root: Path, launches: int = 1) -> None:
    """Build what the ranks will build: capacities, cost model, policy, and the model of what virtual ranks send.

    Where there are capacities and the data are at hand, every step is checked. Other data may take minutes to read: a
    global batch of the shortest samples stands for them, and the ranks check the steps when they have loaded them.

    Args:
        config: resolved, but for a probe that is still to be made (`probe.run: auto`).
        workers: ranks that train (G).
        root: results folder in which probe runs are looked up.
        launches: launches to come, each with the seed after that of the one before.

    Raises:
        NothingFits: capacities that cannot hold the global batch, in some step.
        UsageError: settings that no plan can meet, data that cannot be used, or a probe run that cannot be used.
        RecordError: a run that is named as a probe and is none.
    """
    multiple = config.workload.pad_to_multiple_of
    assert isinstance(multiple, int), "resolved"
    planned = _unprobed(config)
    shortest = np.ones(config.train.global_batch, dtype=np.int64)
    problem = build_problem(planned, shortest, workers, multiple, root)
    check_obeyed(config, problem.capacity)
    make_policy(config.schedule.policy_name, problem)
    if config.launch.launcher == "virtual":
        build_comm_model(config.launch.comm_model, root)
    if problem.capacity.unlimited:
        return
    if planned is not config or not data_at_hand(config):
        check_capacity(config, workers, root)
        return
    for launch in range(launches):
        seeded = changed(config, {"train.seed": config.train.seed + launch})
        try:
            check_steps(seeded, _on_known_data(seeded, workers, multiple, root))
        except NothingFits as error:
            where = f"launch with train.seed {seeded.train.seed}: " if launches > 1 else ""
            raise type(error)(f"{where}{error.message}", error.hint) from error


def check_steps_of_rank(config: Config, problem: Problem) -> None:
    """On a rank that has loaded its data: refuse a run of which some step does not fit, where `check_plan` could not.

    Raises:
        NothingFits: as `check_steps`; on every rank alike.
    """
    if not data_at_hand(config):
        check_steps(config, problem)


def _on_known_data(config: Config, workers: int, multiple: int, root: Path) -> Problem:
    workload = known_workload(config)
    assert workload is not None
    train = workload.train
    return build_problem(config, train.lengths, workers, multiple, root, workload.positions, train.second)


def _unprobed(config: Config) -> Config:
    """Without the cost that a probe still to be made will measure."""
    schedule = config.schedule
    if config.probe.run != "auto" or schedule.cost_type != "measured" or schedule.cost_coefficients is not None:
        return config
    return changed(config, {"schedule.cost_type": "tokens"})
