"""`dynbench sync check` tells what it finds as it finds it, and leaves no rank when it is ended."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest

from dynbench.engine.rank.toy_check import check_strategies
from dynbench.plugins import STRATEGIES

pytestmark = pytest.mark.multiproc


def _blocks(pid: int | None, signum: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("SigBlk:"))
    return bool(int(mask, 16) & 1 << (signum - 1))


def test_results_come_while_ranks_run_and_these_end_with_whoever_asked() -> None:
    names = [name for name, entry in STRATEGIES.items() if not entry.servers]
    checking = check_strategies(names, 2)
    first = next(checking)
    ranks = multiprocessing.active_children()
    assert (first.strategy, first.passed) == (names[0], True)
    assert len(ranks) == 2, "they go on with the other strategies"
    assert all(_blocks(rank.pid, signal.SIGINT) for rank in ranks), "Ctrl-C is for the command, which ends them"
    assert not any(_blocks(rank.pid, signal.SIGTERM) for rank in ranks)
    checking.close()
    assert not any(rank.is_alive() for rank in ranks)
