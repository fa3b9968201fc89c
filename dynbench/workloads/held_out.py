"""How many training samples are kept for evaluation where there is no file of their own for it."""

from __future__ import annotations

HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1024


def held_out_of(n_samples: int) -> int:
    """A tenth of the training samples, at most `HELD_OUT_MOST`; none of a few."""
    return min(HELD_OUT_MOST, int(n_samples * HELD_OUT_SHARE))
