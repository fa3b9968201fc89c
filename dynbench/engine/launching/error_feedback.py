"""Whether a compressor keeps what it leaves out where that was not given."""

from __future__ import annotations

from collections.abc import MutableMapping

from dynbench.config.held import residuals_held
from dynbench.config.schema import Config
from dynbench.plugins import COMPRESSORS, options_of
from dynbench.plugins.compressor_options import FeedbackOptions

KEY = "compress.error_feedback"


def decide_error_feedback(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> dict[str, object]:
    """`compress.error_feedback` of a compressor that reads it; what `auto` means joins the decisions."""
    entry = COMPRESSORS.get(config.compress.name)
    if entry is None or not entry.reads("error_feedback"):
        return {}
    if options_of(config.compress, FeedbackOptions).error_feedback != "auto":
        return {}
    kept = bool(residuals_held(config))
    decisions[KEY] = {"value": kept, "reason": f"{entry.name} leaves out {'much' if kept else 'little'} of a gradient"}
    return {KEY: kept}
