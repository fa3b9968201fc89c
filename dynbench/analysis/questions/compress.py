"""What travels: compressors against the whole gradient, with the loss that they cost."""

from __future__ import annotations

from dynbench.analysis.questions import sync
from dynbench.analysis.questions.base import EVALUATION, Question

QUESTION = Question(
    name="compress",
    description="what sending less of the gradient saves, and what it costs in loss",
    asks=("compress",),
    loss_drift=0.05,
    metrics=("compression_ratio", *sync.QUESTION.metrics),
    overview=("compression_ratio", "bytes_wire.mean", "exposed_comm_ms.mean", *EVALUATION),
    chapters=("time", "traffic", "loss", "memory"),
)
