"""Ranks that torchrun or srun has started already."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dynbench.config.schema import Config


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
