"""Ranks wait for one that prepares data for as long as it does, and no longer than it lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forked import ForkedPopen

pytestmark = pytest.mark.multiproc

RANK_PROGRAM = Path(__file__).with_name("preparing_rank.py")
ONE_NODE, TWO_NODES = (0, 1), (0, 0)
"""Local ranks."""


def ended(folder: Path, local_ranks: tuple[int, int], slow_rank: int, what: str) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of both ranks."""
    ranks = [
        ForkedPopen(
            [sys.executable, str(RANK_PROGRAM), str(rank), str(local_rank), str(folder / "meet"), str(slow_rank), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, local_rank in enumerate(local_ranks)
    ]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


@pytest.mark.parametrize(("local_ranks", "slow_rank"), [(ONE_NODE, 0), (ONE_NODE, 1), (TWO_NODES, 1)])
def test_preparing_data_may_take_longer_than_a_collective(
    tmp_path: Path, local_ranks: tuple[int, int], slow_rank: int
) -> None:
    found = ended(tmp_path, local_ranks, slow_rank, "is slow")
    assert [(code, out.strip()) for code, out, _ in found] == [(0, "data")] * 2, found


@pytest.mark.parametrize("what", ["dies", "fails"])
def test_nobody_waits_for_a_rank_that_is_gone(tmp_path: Path, what: str) -> None:
    (code, _, errors), (waiting, _, noticed) = ended(tmp_path, ONE_NODE, 0, what)
    assert code == (-9 if what == "dies" else 1), errors
    assert waiting == 1 and "onnection closed by peer" in noticed
