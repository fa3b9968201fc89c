"""Why strategies differ: messages against copies, hidden against begun late, divided against whole."""

from __future__ import annotations

from collections.abc import Mapping

from dynbench.experiment.subject import Subject, mean_of
from dynbench.units import mb

PAIRS: Mapping[str, tuple[str, str]] = {
    "flat": ("naive", "flat"),
    "overlap": ("naive", "overlap"),
    "zero1": ("ddp", "zero1"),
    "zero1_torch": ("zero1", "zero1_torch"),
    "fsdp": ("ddp", "fsdp"),
}
"""Sentence to the strategies that it holds against each other."""
NUMBERS: Mapping[str, str] = {
    "step": "step_time_ms.mean",
    "calls": "collectives.mean",
    "transfer": "comm_transfer_ms.mean",
    "comm": "comm_ms.mean",
    "exposed": "exposed_comm_ms.mean",
    "beyond": "exposed_vs_null_ms.mean",
    "compute": "time_ms.compute",
    "flatten": "timed_ms.workers.flatten_ms",
    "unflatten": "timed_ms.workers.unflatten_ms",
    "optimizer": "memory_parts.after_step.optimizer_mb",
    "gradients": "memory_parts.after_step.gradients_mb",
    "parameters": "memory_parts.after_step.parameters_mb",
    "buffers": "memory_parts.after_step.strategy_mb",
}
"""Number of an arm to its key in a summary."""


def strategies_told(subject: Subject) -> bool:
    """Whether some pair of strategies is there that a sentence is about."""
    return subject.question.name == "sync" and any(_pairs(subject))


def strategy_pairs(subject: Subject) -> list[tuple[str, dict[str, object], dict[str, object]]]:
    """Sentence, and the numbers of the arms that it is about."""
    return [(key, _numbers(subject, one), _numbers(subject, other)) for key, one, other in _pairs(subject)]


def _pairs(subject: Subject) -> list[tuple[str, str, str]]:
    """Sentence, and the arms that it is about: the first of each strategy."""
    arms: dict[str, str] = {}
    for name, members in subject.arms.items():
        if members[0].config is not None:
            arms.setdefault(str(members[0].config.get("sync.name")), name)
    return [(key, arms[one], arms[other]) for key, (one, other) in PAIRS.items() if one in arms and other in arms]


def _numbers(subject: Subject, arm: str) -> dict[str, object]:
    members = subject.arms[arm]
    wire = mean_of(members, "bytes_wire.mean")
    return {
        **{what: mean_of(members, key) for what, key in NUMBERS.items()},
        "name": arm,
        "hidden": mean_of(members, "overlap_fraction"),
        "wire_mb": None if wire is None else mb(wire),
        "counted": mean_of(members, "bytes_sent_ratio"),
    }
