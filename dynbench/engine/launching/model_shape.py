"""The shape of a model with random weights where none was given."""

from __future__ import annotations

from collections.abc import MutableMapping

from dynbench.config.schema import Config
from dynbench.plugins import WORKLOADS
from dynbench.plugins.workloads import OF_MODEL

KEY = "workload.size"


def decide_shape(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> dict[str, object]:
    """`workload.size`; what `auto` means joins the decisions where a shape is read."""
    shape = config.workload.shape
    if config.workload.size != "auto":
        return {} if config.workload.size == shape else {KEY: shape}
    if config.workload.weights == "random" and not config.workload.runs_own_code:
        found = "workload.model is a folder with a config.json"
        reason = found if shape == OF_MODEL else WORKLOADS[config.workload.name].sizes[shape].summary
        decisions[KEY] = {"value": shape, "reason": reason}
    return {KEY: shape}
