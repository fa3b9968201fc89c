"""Whether the capacities can hold the global batch at all, known without the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynbench.config.rank_rules import buffer_size
from dynbench.config.schema import Config
from dynbench.engine.planning import build_capacity
from dynbench.errors import NothingFits, UsageError
from dynbench.plugins import POLICIES
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.policy import policy_class


def check_obeyed(config: Config, capacity: Capacity) -> None:
    """Refuse capacities for a policy that does not know them.

    Raises:
        UsageError: with what does.
    """
    if not capacity.unlimited and not POLICIES[config.schedule.policy_name].capped:
        raise UsageError(
            f"schedule.policy: {config.schedule.policy_name!r} is a baseline that obeys no capacities",
            "Leave schedule.capacity out, or plan with partition.",
        )


def check_capacity(config: Config, workers: int, root: Path) -> None:
    """Refuse a global batch that no plan can deal within the capacities, whatever its lengths.

    Every rank is taken at its best: samples of length 1, all micro-batches full. Batches refused because of their
    lengths are found when these are known.

    Raises:
        NothingFits: with the most that could fit.
        UsageError: a probe run that cannot be used.
        RecordError: a run that is named as a probe and is none.
    """
    capacity = build_capacity(config, workers, root)
    schedule = config.schedule
    if capacity.unlimited or schedule.micro_batches == "auto":
        return
    per_rank = capacity.limits(workers, np.ones(1, dtype=np.int64))[:, 0] * schedule.micro_batches
    if schedule.policy_name == "prefix":
        per_rank = np.minimum(per_rank, buffer_size(config, workers))
    most = workers * int(per_rank.min()) if schedule.policy_name == "static" else int(per_rank.sum())
    if config.train.global_batch > most:
        split = ", or schedule.micro_batches=auto" if policy_class(schedule.policy_name).splits else ""
        raise NothingFits(
            f"schedule.capacity: {_shown(schedule.capacity)} on {workers} ranks cannot hold train.global_batch "
            f"{config.train.global_batch}; no more than {most} can fit",
            f"Set --global-batch {most}, or less where samples are long{split}.",
        )


def _shown(capacity: object) -> object:
    return list(capacity) if isinstance(capacity, tuple) else capacity
