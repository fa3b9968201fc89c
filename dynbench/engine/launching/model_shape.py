"""The shape of a model with random weights where none was given."""

from __future__ import annotations

from collections.abc import MutableMapping

from dynbench.config.schema import Config

KEY = "workload.size"
REASONS = {"model": "workload.model is a folder with a config.json", "small": "runs on a CPU too"}


def decide_shape(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> dict[str, object]:
    """`workload.size`; what `auto` means joins the decisions where a shape is read."""
    if config.workload.size != "auto":
        return {}
    shape = config.workload.shape
    if config.workload.weights == "random" and not config.workload.runs_own_code:
        decisions[KEY] = {"value": shape, "reason": REASONS[shape]}
    return {KEY: shape}
