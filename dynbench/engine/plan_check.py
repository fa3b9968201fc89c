"""Whether a configuration can be planned at all, found before anything is launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynbench.config.schema import Config
from dynbench.engine.capacity_check import check_capacity
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.planning import build_problem
from dynbench.schedule.policy import make_policy


def check_plan(config: Config, world_size: int, root: Path) -> None:
    """Build what the ranks will build: capacities, cost model, policy, and the model of what virtual ranks send.

    The data are not read here, which may take minutes: a global batch of the shortest samples stands for them. What
    only the real lengths show is found when they are planned.

    Args:
        config: resolved, but for a probe that is still to be made (`probe.run: auto`).
        world_size: ranks (G).
        root: results folder in which probe runs are looked up.

    Raises:
        NothingFits: capacities that cannot hold the global batch.
        UsageError: settings that no plan can meet, or a probe run that cannot be used.
        RecordError: a run that is named as a probe and is none.
    """
    check_capacity(config, world_size, root)
    multiple = config.workload.pad_to_multiple_of
    assert isinstance(multiple, int), "resolved"
    shortest = np.ones(config.train.global_batch, dtype=np.int64)
    make_policy(config.schedule.policy_name, build_problem(_unprobed(config), shortest, world_size, multiple, root))
    if config.launch.launcher == "virtual":
        build_comm_model(config.launch.comm_model, root)


def _unprobed(config: Config) -> Config:
    """Without the cost that a probe still to be made will measure."""
    schedule = config.schedule
    if config.probe.run != "auto" or schedule.cost_type != "measured" or schedule.cost_coefficients is not None:
        return config
    return config.model_copy(update={"schedule": schedule.model_copy(update={"cost_type": "tokens"})})
