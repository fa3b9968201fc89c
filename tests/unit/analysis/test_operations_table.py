"""Communication by operation, as a table that is too wide for one."""

from __future__ import annotations

from dynbench.analysis.operations_table import operations_table


def test_a_further_table_says_of_which_operation_its_numbers_are() -> None:
    measured = {"calls": 12.0, "ms": 23.4, "wait_ms": 11.7, "transfer_ms": 11.7, "bytes": 1234567.0, "gb_per_s": 0.1}
    told = [{"side": "worker", "operation": name, **measured} for name in ("all_gather", "reduce_scatter")]
    table = operations_table({"fsdp": [{"by_operation": told}]})
    assert table is not None
    _, *parts = table.markdown().split("\n\n")
    assert len(parts) > 1
    for part in parts:
        _, _, *rows = part.splitlines()
        assert [row.split("|")[3].strip() for row in rows] == ["all_gather", "reduce_scatter"]
