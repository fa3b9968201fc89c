"""While a rank is late, in planning, data or compute, the others are in sync, whatever the strategy."""

from __future__ import annotations

import polars as pl
import pytest
from sampled import sampled
from strategy_jobs import PLACES, train_late
from warm import WarmRanks

from dynbench.plugins import STRATEGIES

pytestmark = pytest.mark.multiproc

LATE_S, WARMUP = 0.8, 3
SMALL = (
    *("workload.name=causal_lm", "workload.size=tiny", "workload.max_length=16", "train.eval_samples=0"),
    f"train.warmup_steps={WARMUP}",  # in its second step ddp lays out its buckets anew, within its forward pass
)
IN_MAKE_TEST = ("ddp", "zero1", "fsdp", "ps")
"""Of each kind one; the others in the matrix."""
WAITED_FOR = {name: entry for name, entry in STRATEGIES.items() if entry.trains}


@pytest.mark.parametrize("sync", sampled(WAITED_FOR, IN_MAKE_TEST))
def test_a_late_rank_is_waited_for_in_sync(ranks: WarmRanks, three: WarmRanks, new_run, sync: str) -> None:
    entry = WAITED_FOR[sync]
    steps = ["sync.inner_steps=1"] if entry.reads("inner_steps") else []
    run, config = new_run(*SMALL, f"launch.nproc={2 + entry.servers}", f"sync.name={sync}", *steps)
    (three if entry.servers else ranks)(train_late, str(run.path), config, LATE_S)
    waits = pl.read_csv(run.rank_file(entry.servers)).filter(pl.col("step") >= WARMUP)["sync_ms"]
    assert len(waits) == len(PLACES) and waits.min() > 500 * LATE_S, dict(zip(PLACES, waits, strict=True))
