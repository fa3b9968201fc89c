"""The optimizer's step size where none was given."""

from __future__ import annotations

from collections.abc import MutableMapping

from dynbench.config.schema import Config

KEY = "train.learning_rate"
FROM_SCRATCH = 5e-4
FINE_TUNING = 2e-5
"""The least of those that work for all tasks of Devlin et al. (NAACL 2019, appendix A.3)."""


def decide_learning_rate(config: Config, decisions: MutableMapping[str, dict[str, object]]) -> float:
    """`train.learning_rate`; what `auto` means depends on the weights, and joins the decisions."""
    if config.train.learning_rate != "auto":
        return config.train.learning_rate
    fine_tunes = config.workload.weights == "pretrained"
    rate, reason = (FINE_TUNING, "fine-tunes pretrained weights") if fine_tunes else (FROM_SCRATCH, "random weights")
    decisions[KEY] = {"value": rate, "reason": reason}
    return rate
