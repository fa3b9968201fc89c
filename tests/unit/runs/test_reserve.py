from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.runs.atomic import RESERVE_BYTES, release, reserve
from dynbench.runs.store import RunStore


def reserved_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(".*"))


def test_room_is_taken_and_given_back(tmp_path: Path) -> None:
    reserve(tmp_path)
    assert reserved_bytes(tmp_path) == RESERVE_BYTES
    release(tmp_path)
    release(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["completed", "failed", "interrupted", "oom"])
def test_a_run_holds_room_for_its_end_while_it_runs(tmp_path: Path, end: str) -> None:
    run = RunStore(tmp_path).create("train", "static")
    assert reserved_bytes(run.path) == 0
    run.update(status="running")
    assert reserved_bytes(run.path) == RESERVE_BYTES
    run.update(warnings=["still running"])
    assert reserved_bytes(run.path) == RESERVE_BYTES
    run.update(status=end)
    assert reserved_bytes(run.path) == 0
