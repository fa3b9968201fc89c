"""`sorted_equal`: the batch sorted by length and cut into equal counts; little padding, and no gain in the maximum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbench.schedule.peers.base import Peer
from dynbench.schedule.plan import IntArray


class SortedEqual(Peer):
    """Contiguous cuts of the sorted batch; where B is no multiple of G, the shorter groups get one more."""

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups in ascending length."""
        ordered = batch[np.argsort(self.problem.padded_lengths[batch], kind="stable")]
        return np.array_split(ordered, self.problem.workers)
