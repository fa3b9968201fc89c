"""How long a padded batch is: the one rule that plans, rows, trials and tensors share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def padded_lengths(lengths: ArrayLike, multiple: int, positions: int | None) -> NDArray[np.int64]:
    """Lengths rounded up to a multiple, but never above what the model takes, tokens; same shape.

    Args:
        lengths: of the longest sample of each batch, tokens, at most `positions`.
        multiple: `workload.pad_to_multiple_of`, tokens.
        positions: longest padded sample that the model takes, tokens; None for any.
    """
    rounded = -(-np.asarray(lengths, dtype=np.int64) // multiple) * multiple
    return rounded if positions is None else np.minimum(rounded, positions)


def padded_width(lengths: NDArray[np.int64], multiple: int, positions: int | None) -> int:
    """Length to which one batch of these samples is padded, tokens; arguments as `padded_lengths`."""
    return int(padded_lengths(lengths.max(), multiple, positions))
