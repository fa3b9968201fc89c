"""Settings left to `auto` that this machine does not decide: learning rate, model, error feedback, steps of epochs."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

from dynbench.config import schema
from dynbench.config.part_rules import known_entry
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

FROM_SCRATCH = 5e-4
FINE_TUNING = 2e-5
"""The least of those that work for all tasks of Devlin et al. (NAACL 2019, appendix A.3)."""
Reason = dict[str, object]
"""A `value` and the `reason` for it."""
T = TypeVar("T")


class Decisions:
    """A configuration being decided: what changes in it, and why.

    Args:
        config: with the `auto` values.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.changes: dict[str, object] = {}
        """Dotted key to value."""
        self.reasons: dict[str, Reason] = {}
        """Of every `auto` or null that was decided, by dotted key."""

    def decide(self, key: str, value: T, reason: str) -> T:
        """Set what `auto` means here."""
        self.changes[key] = value
        self.reasons[key] = {"value": value, "reason": reason}
        return value


def decide_learning_rate(found: Decisions) -> None:
    """`train.learning_rate`; what `auto` means depends on the weights."""
    if found.config.train.learning_rate == "auto":
        fine_tunes = found.config.workload.weights == "pretrained"
        rate, reason = (
            (FINE_TUNING, "fine-tunes pretrained weights") if fine_tunes else (FROM_SCRATCH, "random weights")
        )
        found.decide("train.learning_rate", rate, reason)


def decide_image_size(found: Decisions) -> None:
    """`workload.image_size` of a workload that reads it."""
    entry = known_entry(found.config)
    if entry is not None and entry.reads("image_size"):
        side, reason = image_side(found.config.workload)
        found.changes["workload.image_size"] = side
        if reason:
            found.decide("workload.image_size", side, reason)


def decide_error_feedback(found: Decisions) -> None:
    """`compress.error_feedback` of a compressor that reads it."""
    entry, settings = COMPRESSORS.get(found.config.compress.name), found.config.compress
    if entry is None or not entry.reads("error_feedback"):
        return
    if options_of(settings, FeedbackOptions).error_feedback == "auto":
        keeps = bool(residual_copies(found.config))
        reason = f"{entry.name} leaves out {'much' if keeps else 'little'} of a gradient"
        found.decide("compress.error_feedback", keeps, reason)


def decide_shape(found: Decisions) -> None:
    """`workload.size`, with a reason where the shape is read."""
    workload = found.config.workload
    found.changes["workload.size"] = shape = workload.shape
    if workload.size == "auto" and workload.weights == "random" and not workload.runs_own_code:
        folder = "workload.model is a folder with a config.json"
        reason = folder if shape == OF_MODEL else WORKLOADS[workload.name].sizes[shape].summary
        found.decide("workload.size", shape, reason)


def decide_steps(found: Decisions) -> None:
    """`train.steps` of `train.epochs`, from the training samples, which are loaded for it.

    An epoch has as many steps as there are full global batches; the warm-up's are among them.

    Raises:
        ConfigError: steps of another number are given too, or all of them are warm-up.
        DynbenchError: as loading the data does.
        UsageError: a policy whose steps have no fixed number of samples, or fewer samples than a global batch.
    """
    train, name = found.config.train, found.config.schedule.policy_name
    if train.epochs is None:
        return
    if not policy_class(name).fixed_batch:
        raise UsageError(
            f"train.epochs: {train.epochs}, but under policy {name!r} the samples of a step vary, so that no number of "
            "steps is an epoch",
            "Set train.steps in its place.",
        )
    samples = _training_samples(found.config)
    each = DataOrder(samples, train.global_batch).steps_per_epoch
    steps = train.epochs * each - train.warmup_steps
    if steps < 1:
        short = f"train.epochs: {train.epochs} are {train.epochs * each} steps, all of them in train.warmup_steps"
        raise ConfigError([f"{short} {train.warmup_steps}; greatest that works: {train.epochs * each - 1}"])
    if train.steps not in (type(train).model_fields["steps"].default, steps):
        given = f"train.steps: {train.steps}, but train.epochs {train.epochs} are {steps} beside the warm-up"
        raise ConfigError([f"{given}; leave one of them out"])
    reason = f"train.epochs {train.epochs} of {each} steps, {samples:,} samples, less train.warmup_steps"
    found.decide("train.steps", steps, reason)


def _training_samples(config: schema.Config) -> int:
    known = known_workload(config)
    if known is not None:
        return len(known.train)
    return _counted(config.workload, config.train.seed if config.workload.runs_own_code else 0)


@lru_cache(maxsize=8)
def _counted(workload: schema.Workload, seed: int) -> int:
    """Loaded, and stored in the cache as the ranks will read it; how many a subset has does not depend on the seed."""
    config = schema.Config().model_copy(update={"workload": workload, "train": schema.Train(seed=seed)})
    with warnings_left_to_the_ranks():
        return len(build_workload(config).train)
