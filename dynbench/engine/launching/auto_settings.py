"""Settings left to `auto` that this machine does not decide: learning rate, model, error feedback, steps of epochs."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import lru_cache

from dynbench.config import schema
from dynbench.config.image_rules import known_entry
from dynbench.config.ranks import residual_copies
from dynbench.config.schema import Config
from dynbench.engine.plan_check import known_workload, warnings_left_to_the_ranks
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins import COMPRESSORS, WORKLOADS, options_of
from dynbench.plugins.compressors import FeedbackOptions
from dynbench.plugins.workloads import OF_MODEL
from dynbench.schedule.plan import DataOrder
from dynbench.schedule.policy import policy_class
from dynbench.workloads.datasets.images import image_side
from dynbench.workloads.registry import build_workload

LEARNING_RATE_KEY = "train.learning_rate"
FROM_SCRATCH = 5e-4
FINE_TUNING = 2e-5
"""The least of those that work for all tasks of Devlin et al. (NAACL 2019, appendix A.3)."""
IMAGE_SIZE_KEY = "workload.image_size"
ERROR_FEEDBACK_KEY = "compress.error_feedback"
SIZE_KEY = "workload.size"


def decide_learning_rate(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> float:
    """`train.learning_rate`; what `auto` means depends on the weights, and joins the decisions."""
    if config.train.learning_rate != "auto":
        return config.train.learning_rate
    fine_tunes = config.workload.weights == "pretrained"
    rate, reason = (FINE_TUNING, "fine-tunes pretrained weights") if fine_tunes else (FROM_SCRATCH, "random weights")
    decisions[LEARNING_RATE_KEY] = {"value": rate, "reason": reason}
    return rate


def decide_image_size(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> dict[str, object]:
    """`workload.image_size` of a workload that reads it; what `auto` means joins the decisions."""
    entry = known_entry(config)
    if entry is None or not entry.reads("image_size"):
        return {}
    side, reason = image_side(config.workload)
    if reason:
        decisions[IMAGE_SIZE_KEY] = {"value": side, "reason": reason}
    return {IMAGE_SIZE_KEY: side}


def decide_error_feedback(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> dict[str, object]:
    """`compress.error_feedback` of a compressor that reads it; what `auto` means joins the decisions."""
    entry = COMPRESSORS.get(config.compress.name)
    if entry is None or not entry.reads("error_feedback"):
        return {}
    if options_of(config.compress, FeedbackOptions).error_feedback != "auto":
        return {}
    kept = bool(residual_copies(config))
    decisions[ERROR_FEEDBACK_KEY] = {
        "value": kept,
        "reason": f"{entry.name} leaves out {'much' if kept else 'little'} of a gradient",
    }
    return {ERROR_FEEDBACK_KEY: kept}


def decide_shape(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> dict[str, object]:
    """`workload.size`; what `auto` means joins the decisions where a shape is read."""
    shape = config.workload.shape
    if config.workload.size != "auto":
        return {} if config.workload.size == shape else {SIZE_KEY: shape}
    if config.workload.weights == "random" and not config.workload.runs_own_code:
        found = "workload.model is a folder with a config.json"
        reason = found if shape == OF_MODEL else WORKLOADS[config.workload.name].sizes[shape].summary
        decisions[SIZE_KEY] = {"value": shape, "reason": reason}
    return {SIZE_KEY: shape}


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
        short = f"train.epochs: {train.epochs} are {train.epochs * each} steps, all of them in train.warmup_steps"
        raise ConfigError([f"{short} {train.warmup_steps}; greatest that works: {train.epochs * each - 1}"])
    if train.steps not in (type(train).model_fields["steps"].default, steps):
        given = f"train.steps: {train.steps}, but train.epochs {train.epochs} are {steps} beside the warm-up"
        raise ConfigError([f"{given}; leave one of them out"])
    reason = f"train.epochs {train.epochs} of {each} steps, {samples:,} samples, less train.warmup_steps"
    decisions["train.steps"] = {"value": steps, "reason": reason}
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
