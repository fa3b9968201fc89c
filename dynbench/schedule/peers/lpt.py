"""`lpt`: longest processing time first; balances unpadded sums."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.schedule.longest_first import deal_longest_first, deal_to_first_finish
from dynbench.schedule.peers.base import Peer
from dynbench.schedule.plan import IntArray


class LongestFirst(Peer):
    """Samples from the longest down, each to the rank that would finish it first; padding is not seen."""

    def groups(self, batch: IntArray) -> Sequence[IntArray]:
        """Groups in rank order; ranks of unequal speed are loaded by their time."""
        weights, problem = self.weights(batch), self.problem
        if problem.speeds is None:
            _, dealt = deal_longest_first(weights, problem.workers)
        else:
            _, dealt = deal_to_first_finish(weights, problem.relative_speeds(), every_rank=False)
        return [batch[positions] for positions in dealt]
