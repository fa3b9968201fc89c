"""Several at once: what they give together, not which of them gave it."""

from __future__ import annotations

from dynbench.analysis.questions import compress, precision, schedule, sync
from dynbench.analysis.questions.base import EVALUATION, Question

QUESTION = Question(
    name="levers",
    description="what changes of schedule, synchronisation, compression and precision give together; only if named",
    asks=tuple(key for part in (schedule, sync, compress, precision) for key in part.QUESTION.asks),
    named_only=True,
    loss_drift=compress.QUESTION.loss_drift,
    figures=("waterfall", "time_breakdown", "step_time_distribution", "timeline", "step_time"),
    overview=("waste.s", "padding_ratio", "wait_fraction", "exposed_comm_ms.mean", "bytes_wire.mean", *EVALUATION),
    chapters=("time", "traffic", "loss", "memory"),
)
