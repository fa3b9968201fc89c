"""Who computes which samples: what the policies give back of the time spent waiting."""

from __future__ import annotations

from dynbench.analysis.questions.base import EVALUATION, Question

QUESTION = Question(
    name="schedule",
    description="which policy, cost, window or layout makes the slowest rank wait least",
    asks=("schedule", "workload.layout", "launch.slowdown"),
    plans=True,
    overview=(
        "waste.s",
        "padding_ratio",
        "wait_fraction",
        "exposed_comm_ms.mean",
        "plan_fraction",
        "step_length_tokens.std",
        *EVALUATION,
    ),
    figures=(),
    columns=("recovered", "saved"),
    template="template",
    chapters=(),
)
