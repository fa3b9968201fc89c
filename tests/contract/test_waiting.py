"""While a rank is late, in planning, data or compute, the others are in sync, whatever the strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
from strategy_jobs import PLACES, SETTINGS, train_late
from warm import WarmRanks

from dynbench.config.layers import load_config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.launching.run_launch import create_run
from dynbench.plugins import STRATEGIES
from dynbench.runs.store import RunStore
from dynbench.wire.traffic import union_ms

pytestmark = pytest.mark.multiproc

LATE_S = 0.2
SMALL = (
    *("workload.name=causal_lm", "workload.size=tiny", "workload.max_length=16", "train.eval_samples=0"),
    "train.warmup_steps=3",  # in its second step ddp lays out its buckets anew, within its forward pass
)
IN_MAKE_TEST = ("ddp", "zero1", "fsdp", "ps")
"""A kind of meeting each; the others in the matrix."""
MEETING = {name: entry for name, entry in STRATEGIES.items() if entry.trains}


@pytest.mark.parametrize(
    "sync",
    [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.matrix) for name in MEETING],
)
def test_a_late_rank_is_waited_for_in_sync(ranks: WarmRanks, three: WarmRanks, tmp_path: Path, sync: str) -> None:
    entry, store = MEETING[sync], RunStore(tmp_path / "results")
    settings = [*SETTINGS, *SMALL, f"launch.nproc={2 + entry.servers}", f"sync.name={sync}"]
    if entry.reads("inner_steps"):
        settings.append("sync.inner_steps=1")
    resolved = resolve(load_config(None, settings), this_machine(), store)
    run = create_run(resolved, store, ())
    jobs = three if entry.servers else ranks
    found = jobs(train_late, str(run.path), resolved.config, entry.servers, LATE_S)
    for place in PLACES:
        [(begin, end)], spans = found[-1][place], found[entry.servers][place]
        within = [(max(begin, start), min(end, stop)) for start, stop in spans if start < end and stop > begin]
        assert union_ms(within) == pytest.approx((end - begin) / 1e6, rel=0.1), f"late in {place}"
