from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynbench.runs.records import COLUMNS, StepRow
from dynbench.runs.row_writer import RowWriter

ROW = StepRow(
    step=0, rank=1, warmup=1, policy="prefix", local_batch=3, micro_batches=1, max_seq_len_in_batch=9, real_tokens=20,
    padded_tokens=27, real_tokens2=146, padded_tokens2=243, plan_ms=0.1, data_ms=0.2,
    forward_ms=1.0, backward_ms=2.0, sync_ms=0.3, optimizer_ms=0.4,
    compute_ms=3.0, step_time_ms=4.0, peak_mem_mb=10.5, reserved_mem_mb=11.5, loss=0.7, work_hash=2**64 - 1, skipped=0,
    weight=3.0,
)  # fmt: skip


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_columns_are_the_records_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.csv"
    with RowWriter(path) as writer:
        writer.write(ROW)
        writer.write(replace(ROW, step=1))
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    rows = read(path)
    assert [row["step"] for row in rows] == ["0", "1"]
    assert rows[0]["work_hash"] == str(2**64 - 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(loss=st.floats(allow_nan=False), policy=st.text(st.characters(codec="utf-8", exclude_characters="\r\0")))
def test_values_come_back_exactly(tmp_path: Path, loss: float, policy: str) -> None:
    path = tmp_path / "rank_0.csv"
    path.unlink(missing_ok=True)
    with RowWriter(path) as writer:
        writer.write(replace(ROW, loss=loss, policy=policy))
    row = read(path)[0]
    assert float(row["loss"]) == loss
    assert row["policy"] == policy


def test_every_row_is_there_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.csv"
    writer = RowWriter(path)
    assert path.read_text().count("\n") == 1
    for step in range(3):
        writer.write(replace(ROW, step=step))
        assert len(read(path)) == step + 1
    writer.close()
    writer.close()


def test_extra_columns_follow(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.csv"
    with RowWriter(path, extra=("comm_ms", "bytes_wire")) as writer:
        writer.write(ROW, {"comm_ms": 1.5, "bytes_wire": 10})
        with pytest.raises(KeyError):
            writer.write(ROW, {"comm_ms": 1.5})
    assert writer.columns == (*COLUMNS, "comm_ms", "bytes_wire")
    assert [(row["comm_ms"], row["bytes_wire"]) for row in read(path)] == [("1.5", "10")]


def test_appending_keeps_one_header_and_refuses_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.csv"
    for step in range(2):
        with RowWriter(path) as writer:
            writer.write(replace(ROW, step=step))
    assert [row["step"] for row in read(path)] == ["0", "1"]
    with pytest.raises(ValueError, match="other columns"):
        RowWriter(path, extra=("comm_ms",))


def test_rows_survive_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from dynbench.runs.row_writer import RowWriter\n"
        "from dynbench.runs.records import COLUMNS, StepRow\n"
        "writer = RowWriter(Path(sys.argv[1])); row = StepRow(*range(len(COLUMNS)))\n"
        f"writer.write(row); writer.write(row); os.kill(os.getpid(), {signal.SIGKILL})"
    )
    path = tmp_path / "rank_0.csv"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert len(read(path)) == 2


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:7]))
    path = tmp_path / "rank_0.csv"
    with RowWriter(path) as writer:
        writer.write(ROW)
    monkeypatch.undo()
    assert read(path)[0]["policy"] == "prefix"
