"""The parts of a step and their colours, the same in every figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a step.

    Attributes:
        column: in the merged rows; `<column>_mean` in the step table.
        title: in legends.
        color: of the bar.
        hatch: matplotlib hatch, so that waiting is told apart without colour.
    """

    column: str
    title: str
    color: str
    hatch: str = ""


PHASES: tuple[Phase, ...] = (
    Phase("plan_ms", "plan", "#000000"),
    Phase("data_ms", "data", "#E69F00"),
    Phase("compute_ms", "compute", "#0072B2"),
    Phase("wait_ms", "wait for the slowest rank", "#F4C7AE", "////"),
    Phase("exposed_comm_ms", "communication", "#CC79A7"),
    Phase("optimizer_ms", "optimizer", "#009E73"),
    Phase("other_ms", "other", "#BBBBBB"),
)
"""In the order in which they happen."""

WAIT_EDGE = "#D55E00"
