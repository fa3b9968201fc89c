"""How large images are where that was not given."""

from __future__ import annotations

from collections.abc import MutableMapping

from dynbench.config.image_rules import known_entry
from dynbench.config.schema import Config
from dynbench.workloads.image_side import image_side

KEY = "workload.image_size"


def decide_image_size(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> dict[str, object]:
    """`workload.image_size` of a workload that reads it; what `auto` means joins the decisions."""
    entry = known_entry(config)
    if entry is None or not entry.reads("image_size"):
        return {}
    side, reason = image_side(config.workload)
    if reason:
        decisions[KEY] = {"value": side, "reason": reason}
    return {KEY: side}
