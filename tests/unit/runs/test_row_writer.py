from __future__ import annotations

import csv
import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynbench.errors import RecordError
from dynbench.runs.records import COLUMNS, LENGTHS_FILE, RowWriter, StepRow, read_lengths, write_lengths
from dynbench.runs.run import Run

ROW = replace(StepRow(*range(len(COLUMNS))), policy="prefix", work_hash=2**64 - 1)
EXTRA = {"comm_ms": 1.5, "bytes_wire": 10}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank_0.csv"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(loss=st.floats(allow_nan=False), policy=st.text(st.characters(codec="utf-8", exclude_characters="\r\0")))
def test_values_come_back_exactly(path: Path, loss: float, policy: str) -> None:
    path.unlink(missing_ok=True)
    with RowWriter(path) as writer:
        writer.write(replace(ROW, loss=loss, policy=policy))
    (row,) = read(path)
    assert tuple(row) == COLUMNS and row["work_hash"] == str(2**64 - 1)
    assert (float(row["loss"]), row["policy"]) == (loss, policy)


def test_every_row_is_there_before_the_next_and_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:7]))
    writer = RowWriter(path)
    assert path.read_text().count("\n") == 1
    for step in range(3):
        writer.write(replace(ROW, step=step))
        assert [row["step"] for row in read(path)] == list(map(str, range(step + 1)))
    writer.close()
    writer.close()


def test_extra_columns_follow_in_one_file_with_one_header(path: Path) -> None:
    for step in range(2):
        with RowWriter(path, extra=tuple(EXTRA)) as writer:
            writer.write(replace(ROW, step=step), EXTRA)
            with pytest.raises(KeyError):
                writer.write(ROW, {"comm_ms": 1.5})
    assert [[row[key] for key in ("step", *EXTRA)] for row in read(path)] == [["0", "1.5", "10"], ["1", "1.5", "10"]]
    with pytest.raises(ValueError, match="other columns"):
        RowWriter(path)


@pytest.mark.parametrize("positions", [None, 512])
def test_lengths_come_back(run: Run, positions: int | None) -> None:
    write_lengths(run, np.array([3, 1, 700]), positions)
    lengths, longest = read_lengths(run)
    assert (lengths.tolist(), longest) == ([3, 1, 700], positions)


def spoilt() -> bytes:
    """Compressed lengths, some of whose bytes are others."""
    file = io.BytesIO()
    np.savez_compressed(file, lengths=np.arange(2, 302) % 20 + 1, positions=np.int64(0))
    whole = file.getvalue()
    return whole[:60] + b"\xff" * 40 + whole[100:]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "it ended before its data was known"),
        *((torn, "cannot be read") for torn in (b"", b"PK\x03\x04 torn", b"no zip at all")),
        pytest.param(spoilt(), "cannot be read", id="spoilt"),
        ({"lengths": np.array([{"any": "object"}]), "positions": np.int64(0)}, "allow_pickle"),
        ({"lengths": np.array([3])}, "positions"),
        *(
            ({"lengths": np.array(wrong, dtype=np.int64), "positions": np.int64(0)}, "holds no lengths of at least one")
            for wrong in ([], [3, 0], [[1, 2], [3, 4]])
        ),
    ],
)
def test_lengths_that_cannot_be_used_say_why(run: Run, content: object, said: str) -> None:
    path = run.ranks_dir / LENGTHS_FILE
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    with pytest.raises(RecordError, match=said) as caught:
        read_lengths(run)
    assert caught.value.message.startswith(f"{path}: ") and caught.value.hint
