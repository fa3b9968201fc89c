"""In which arithmetic: fp32, bf16 or fp16, with the loss and the memory that go with it."""

from __future__ import annotations

from dynbench.analysis.questions.base import EVALUATION, Question

QUESTION = Question(
    name="precision",
    description="what another precision saves in time and memory, and what it costs in loss",
    asks=("train.precision",),
    follows=("schedule.capacity", "schedule.speeds"),
    loss_drift=0.02,
    metrics=(
        "throughput_tokens_per_s.mean",
        "step_time_ms.mean",
        "step_time_ms.p50",
        "step_time_ms.p95",
        "peak_mem_mb.max",
        "loss.last",
        *EVALUATION,
        "exposed_comm_ms.mean",
        "bytes_wire.mean",
        "wait_fraction",
    ),
    overview=("peak_mem_mb.max", "exposed_comm_ms.mean", *EVALUATION),
    chapters=("time", "loss", "memory"),
)
