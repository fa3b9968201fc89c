"""Lengths that a run kept come back, or a line says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dynbench.errors import RecordError
from dynbench.runs.row_writer import LENGTHS_FILE, read_lengths, write_lengths
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return RunStore(tmp_path).create("train", "static", name="own")


@pytest.mark.parametrize("positions", [None, 512])
def test_what_is_kept_comes_back(run: Run, positions: int | None) -> None:
    write_lengths(run, np.array([3, 1, 700]), positions)
    kept = read_lengths(run)
    assert (kept.lengths.tolist(), kept.positions) == ([3, 1, 700], positions)


def test_a_run_without_lengths_says_what_knows_them(run: Run) -> None:
    with pytest.raises(RecordError, match="it ended before its data was known") as caught:
        read_lengths(run)
    assert "own" in caught.value.message
    assert "dynbench solve --workload NAME" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 torn",
        b"no zip at all",
    ],
)
def test_a_file_that_is_torn_is_named(run: Run, content: bytes) -> None:
    path = run.ranks_dir / LENGTHS_FILE
    path.write_bytes(content)
    with pytest.raises(RecordError, match="cannot be read") as caught:
        read_lengths(run)
    assert caught.value.message.startswith(f"{path}: ")


def test_a_pickle_is_not_opened(run: Run) -> None:
    np.savez(run.ranks_dir / LENGTHS_FILE, lengths=np.array([{"any": "object"}]), positions=np.int64(0))
    with pytest.raises(RecordError, match="allow_pickle"):
        read_lengths(run)


@pytest.mark.parametrize("lengths", [[], [3, 0], [[1, 2], [3, 4]]])
def test_lengths_that_no_sample_has_are_refused(run: Run, lengths: list[int]) -> None:
    np.savez(run.ranks_dir / LENGTHS_FILE, lengths=np.array(lengths, dtype=np.int64), positions=np.int64(0))
    with pytest.raises(RecordError, match="holds no lengths of at least one token"):
        read_lengths(run)


def test_a_file_of_other_arrays_is_refused(run: Run) -> None:
    np.savez(run.ranks_dir / LENGTHS_FILE, lengths=np.array([3]))
    with pytest.raises(RecordError, match="positions"):
        read_lengths(run)
