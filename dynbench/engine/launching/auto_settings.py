"""Settings left to `auto`, decided for this machine: learning rate, image size, error feedback, the model's shape."""

from __future__ import annotations

from collections.abc import MutableMapping

from dynbench.config.held import residuals_held
from dynbench.config.image_rules import known_entry
from dynbench.config.schema import Config
from dynbench.plugins import COMPRESSORS, WORKLOADS, options_of
from dynbench.plugins.compressors import FeedbackOptions
from dynbench.plugins.workloads import OF_MODEL
from dynbench.workloads.datasets.images import image_side

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
    kept = bool(residuals_held(config))
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
