"""While a rank is late, in planning, data or compute, the others are in sync, whatever the strategy."""

from __future__ import annotations

import pytest
from sampled import sampled
from strategy_jobs import PLACES, train_late
from warm import WarmRanks

from dynbench.plugins import STRATEGIES
from dynbench.wire.traffic import union_ms

pytestmark = pytest.mark.multiproc

LATE_S = 0.2
SMALL = (
    *("workload.name=causal_lm", "workload.size=tiny", "workload.max_length=16", "train.eval_samples=0"),
    "train.warmup_steps=3",  # in its second step ddp lays out its buckets anew, within its forward pass
)
IN_MAKE_TEST = ("ddp", "zero1", "fsdp", "ps")
"""Of each kind one; the others in the matrix."""
WAITED_FOR = {name: entry for name, entry in STRATEGIES.items() if entry.trains}


@pytest.mark.parametrize("sync", sampled(WAITED_FOR, IN_MAKE_TEST))
def test_a_late_rank_is_waited_for_in_sync(ranks: WarmRanks, three: WarmRanks, new_run, sync: str) -> None:
    entry = WAITED_FOR[sync]
    steps = ["sync.inner_steps=1"] if entry.reads("inner_steps") else []
    run, config = new_run(*SMALL, f"launch.nproc={2 + entry.servers}", f"sync.name={sync}", *steps)
    found = (three if entry.servers else ranks)(train_late, str(run.path), config, entry.servers, LATE_S)
    for place in PLACES:
        [(begin, end)], spans = found[-1][place], found[entry.servers][place]
        within = [(max(begin, start), min(end, stop)) for start, stop in spans if start < end and stop > begin]
        assert union_ms(within) == pytest.approx((end - begin) / 1e6, rel=0.1), f"late in {place}"
