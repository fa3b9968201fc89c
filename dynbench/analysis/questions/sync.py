"""How gradients meet: strategies and their settings, at the same optimizer steps."""

from __future__ import annotations

from dynbench.analysis.questions.base import EVALUATION, Question

QUESTION = Question(
    name="sync",
    description="which gradient synchronisation leaves least communication exposed",
    asks=("sync",),
    follows=("schedule.objective",),
    metrics=(
        "throughput_tokens_per_s.mean",
        "step_time_ms.mean",
        "step_time_ms.p50",
        "step_time_ms.p95",
        "exposed_comm_ms.mean",
        "exposed_vs_null_ms.mean",
        "comm_ms.mean",
        "comm_sum_ms.mean",
        "comm_wait_ms.mean",
        "comm_transfer_ms.mean",
        "overlap_fraction",
        "collectives.mean",
        "bytes_wire.mean",
        "bytes_sent_ratio",
        "wait_fraction",
        "peak_mem_mb.max",
        "peak_mem_mb.servers_max",
        "loss.last",
        *EVALUATION,
    ),
    overview=(
        "exposed_comm_ms.mean",
        "comm_transfer_ms.mean",
        "overlap_fraction",
        "bytes_wire.mean",
        "wait_fraction",
        "peak_mem_mb.max",
        *EVALUATION,
    ),
    figures=(
        *("time_breakdown", "step_time_distribution", "timeline", "strategies", "loss_curves"),
        *("comm_timeline", "bucket_overhead", "step_time"),
    ),
    chapters=("time", "traffic", "profile", "memory"),
)
