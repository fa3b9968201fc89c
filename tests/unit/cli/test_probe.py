"""What `dynbench probe` prints of a record."""

from __future__ import annotations

import pytest

from dynbench.cli.probe import _show
from dynbench.runs.probe_record import CapacityRow, ProbeRecord


def record(**changes: object) -> ProbeRecord:
    base: dict[str, object] = {
        "device": "cpu", "precision": "fp32", "memory_limit_mb": None, "world_size": 3, "global_batch": 48,
        "pad_to_multiple_of": 1, "workload": {}, "capacity": [], "tables": [], "trials": [], "timings": [],
        "cost_model": None, "memory_model": None, "speeds": [1.0], "allreduce": None, "soak": None,
        "predicted_speedup": {"partition": 1.5}, "break_even_batch": None,
    }  # fmt: skip
    return ProbeRecord.model_validate(base | changes)


@pytest.mark.parametrize(
    ("batch", "tried", "said"),
    [
        (None, [], "not known: the data hold no batch for 3 ranks"),
        (None, [3, 6, 12, 3072], "from 3 doubled up to 3,072, is predicted to gain more than the noise threshold"),
        (96, [3, 96], "it pays from B=96 on"),
        (12, [3, 6, 12], "scheduling pays from a global batch of 12 on"),
    ],
)
def test_from_which_batch_on_it_pays(
    capsys: pytest.CaptureFixture[str], batch: int | None, tried: list[int], said: str
) -> None:
    _show(record(break_even_batch=batch, break_even_tried=tried))
    printed = " ".join(capsys.readouterr().out.split())
    assert said in printed
    assert ("do not schedule" in printed) == (batch is None and bool(tried))


def test_a_length_without_a_limit_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    def row(length: int, most: int, failed: int | None) -> CapacityRow:
        return CapacityRow(rank=0, length=length, max_batch=most, tested_ok=46, tested_fail=failed, peak_mem_mb=None)

    _show(record(capacity=[row(32, 46, None), row(64, 41, 47)]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0", "32", "no", "limit", "found", "46", "none"] in lines
    assert ["0", "64", "41", "46", "47"] in lines
