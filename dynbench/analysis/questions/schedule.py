"""Who computes which samples: what the policies give back of the time spent waiting."""

from __future__ import annotations

from dynbench.analysis.questions.base import Question

QUESTION = Question(
    name="schedule",
    description="which policy, cost or window makes the slowest rank wait least",
    asks=("schedule", "launch.slowdown"),
    plans=True,
    figures=(),
    columns=("recovered", "saved"),
    template="template",
    chapters=(),
)
