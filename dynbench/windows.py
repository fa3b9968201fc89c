"""Where windows of global batches that are planned together end: what planning, warm-up and comparisons share."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count


def whole_windows(steps: int, windows: Collection[int], steps_per_epoch: int | None = None) -> int:
    """The fewest optimizer steps, not below `steps`, after which no window of any of these sizes is left unfinished.

    Args:
        steps: optimizer steps from the first on.
        windows: global batches planned together (W), one number for each policy.
        steps_per_epoch: windows begin anew with every epoch; None where it is not known, as if all were one.
    """
    return next(end for end in count(steps) if all(_in_epoch(end, steps_per_epoch) % size == 0 for size in windows))


def _in_epoch(step: int, steps_per_epoch: int | None) -> int:
    return step % steps_per_epoch if steps_per_epoch else step
