"""The steps of a run that is asked for in epochs."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import lru_cache

from dynbench.config import schema
from dynbench.engine.known_data import known_workload, warnings_left_to_the_ranks
from dynbench.errors import ConfigError, UsageError
from dynbench.schedule.order import DataOrder
from dynbench.schedule.policy import policy_class
from dynbench.workloads.registry import build_workload

KEY = "train.steps"


def decide_steps(config: schema.Config, decisions: MutableMapping[str, dict[str, object]]) -> int:
    """`train.steps`; those of the epochs follow from the training samples, which are loaded for it.

    An epoch has as many steps as there are full global batches; the warm-up's are among them.

    Raises:
        ConfigError: steps of another number are given too, or all of them are warm-up.
        DynbenchError: as loading the data does.
        UsageError: a policy whose steps have no fixed number of samples, or fewer samples than a global batch.
    """
    train, name = config.train, config.schedule.policy_name
    if train.epochs is None:
        return train.steps
    if not policy_class(name).fixed_batch:
        raise UsageError(
            f"train.epochs: {train.epochs}, but under policy {name!r} the samples of a step vary, so that no number of "
            "steps is an epoch",
            "Set train.steps in its place.",
        )
    samples = _training_samples(config)
    each = DataOrder(samples, train.global_batch).steps_per_epoch
    steps = train.epochs * each - train.warmup_steps
    if steps < 1:
        raise ConfigError(
            [
                f"train.epochs: {train.epochs} are {train.epochs * each} steps, all of them in train.warmup_steps "
                f"{train.warmup_steps}; greatest that works: {train.epochs * each - 1}"
            ]
        )
    if train.steps not in (type(train).model_fields["steps"].default, steps):
        raise ConfigError(
            [
                f"{KEY}: {train.steps}, but train.epochs {train.epochs} are {steps} beside the warm-up; leave one of "
                "them out"
            ]
        )
    reason = f"train.epochs {train.epochs} of {each} steps, {samples:,} samples, less train.warmup_steps"
    decisions[KEY] = {"value": steps, "reason": reason}
    return steps


def _training_samples(config: schema.Config) -> int:
    known = known_workload(config)
    if known is not None:
        return len(known.train)
    return _counted(config.workload, config.train.seed if config.workload.runs_own_code else 0)


@lru_cache(maxsize=8)
def _counted(workload: schema.Workload, seed: int) -> int:
    """Loaded, and kept in the cache as the ranks will read it; how many a subset has does not depend on the seed."""
    config = schema.Config().model_copy(update={"workload": workload, "train": schema.Train(seed=seed)})
    with warnings_left_to_the_ranks():
        return len(build_workload(config).train)
