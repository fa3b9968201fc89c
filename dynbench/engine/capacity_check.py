"""Whether the capacities can hold the global batch at all, found before anything is launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynbench.config.rules import buffer_size
from dynbench.config.schema import Config
from dynbench.engine.planning import build_capacity
from dynbench.errors import NothingFits, UsageError
from dynbench.schedule.policy import policy_class


def check_capacity(config: Config, world_size: int, root: Path) -> None:
    """Refuse a global batch that no plan can deal within the capacities, whatever its lengths.

    Every rank is taken at its best: samples of length 1, all micro-batches full. Batches refused because of their
    lengths are found when they are planned.

    Raises:
        NothingFits: with the largest global batch that fits.
        UsageError: a policy that obeys no capacities, or a probe run that cannot be used.
        RecordError: a run that is named as a probe and is none.
    """
    capacity = build_capacity(config, world_size, root)
    schedule = config.schedule
    if capacity.unlimited:
        return
    if not policy_class(schedule.policy_name).capped:
        raise UsageError(
            f"schedule.policy: {schedule.policy_name!r} is a baseline that obeys no capacities",
            "Leave schedule.capacity out, or plan with partition.",
        )
    if schedule.micro_batches == "auto":
        return
    per_rank = capacity.limits(world_size, np.ones(1, dtype=np.int64))[:, 0] * schedule.micro_batches
    if schedule.policy_name == "prefix":
        per_rank = np.minimum(per_rank, buffer_size(config, world_size))
    most = world_size * int(per_rank.min()) if schedule.policy_name == "static" else int(per_rank.sum())
    if config.train.global_batch > most:
        raise NothingFits(
            f"schedule.capacity: {_shown(schedule.capacity)} on {world_size} ranks cannot hold train.global_batch "
            f"{config.train.global_batch}; the largest that fits is {most}",
            f"Set --global-batch {most}, or schedule.micro_batches=auto.",
        )


def _shown(capacity: object) -> object:
    return list(capacity) if isinstance(capacity, tuple) else capacity
