"""The order in which the arms of a comparison are launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """One launch of a comparison.

    Attributes:
        arm: name of the arm.
        block: 0 for the first launch of every arm, 1 for the second, …; launches of one block form a pair and share
            their seed.
    """

    arm: str
    block: int


def abba_order(arms: Sequence[str], launches: int) -> list[PlannedLaunch]:
    """The arms in order, then reversed, repeated: a drift that is linear in time meets every arm alike.

    Args:
        arms: names.
        launches: launches per arm; even, or the drift does not cancel.
    """
    return [PlannedLaunch(arm, block) for block in range(launches) for arm in (arms if block % 2 == 0 else arms[::-1])]
