"""What `sync demo` shows of every collective, against what torch.distributed documents."""

from __future__ import annotations

from itertools import chain

import pytest
from warm import WarmRanks

from dynbench.engine.rank.demo import OPERATIONS, Seen, shown_on_rank

pytestmark = pytest.mark.multiproc

TENSORS = [[1, 2], [11, 12]]
TOTAL = [12, 14]
AFTER = {
    "all_reduce": [TOTAL, TOTAL],
    "broadcast": [TENSORS[0], TENSORS[0]],
    "reduce": [TOTAL, None],
    "scatter": [[1], [2]],
    "gather": [[1, 2, 11, 12], None],
    "all_gather": [[1, 2, 11, 12], [1, 2, 11, 12]],
    "reduce_scatter": [[12], [14]],
    "all_to_all": [[1, 11], [2, 12]],
    "send_recv": [TENSORS[1], TENSORS[0]],
}


def demo(rank: int) -> list[Seen]:
    return list(shown_on_rank(list(OPERATIONS)))


def test_every_operation_leaves_what_it_says(ranks: WarmRanks) -> None:
    assert list(AFTER) == list(OPERATIONS)
    for line in chain.from_iterable(ranks(demo)):
        assert (line.before, line.after) == (TENSORS[line.rank], AFTER[line.operation][line.rank]), line
