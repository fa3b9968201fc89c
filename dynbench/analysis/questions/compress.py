"""What travels: compressors against the whole gradient, with the loss that they cost."""

from __future__ import annotations

from dynbench.analysis.questions import sync
from dynbench.analysis.questions.base import EVALUATION, Question

QUESTION = Question(
    name="compress",
    description="what sending less of the gradient saves, and what it costs in loss",
    asks=("compress",),
    loss_drift=0.05,
    metrics=(
        "compression_ratio",
        "traffic_compression_ratio",
        "comm_ratio",
        *sync.QUESTION.metrics,
        "compression.grad_rel_error",
        "compression.residual_mb",
        "targets.time_to_target_s",
        "targets.steps_to_target",
        "targets.bytes_to_target",
        "targets.perplexity_at_budget",
    ),
    overview=("compression_ratio", "bytes_wire.mean", "exposed_comm_ms.mean", *EVALUATION),
    figures=(
        "compression_loss",
        "compression_progress",
        "compression_methods",
        "compression_step",
        "compression_links",
        "compression_curves",
        "compression_fsdp",
        "time_breakdown",
        "step_time_distribution",
        "timeline",
    ),
    columns=(),
    chapters=("time", "traffic", "coding", "quality", "loss", "memory"),
)
