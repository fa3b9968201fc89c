"""Communication by operation, as a table that is too wide for one."""

from __future__ import annotations

import pytest

from dynbench.analysis.table_specs import TABLES
from dynbench.report import LANGUAGES
from dynbench.runs.row_writer import Call, CallWriter


def test_a_further_table_says_of_which_operation_its_numbers_are() -> None:
    measured = {"calls": 12.0, "ms": 23.4, "wait_ms": 11.7, "transfer_ms": 11.7, "bytes": 1234567.0, "gb_per_s": 0.1}
    told = [{"side": "worker", "operation": name, **measured} for name in ("all_gather", "reduce_scatter")]
    table = TABLES["operations"].table({"fsdp": [{"by_operation": told}]})
    assert table is not None
    _, *parts = table.markdown().split("\n\n")
    assert len(parts) > 1
    for part in parts:
        _, _, *rows = part.splitlines()
        assert [row.split("|")[3].strip() for row in rows] == ["all_gather", "reduce_scatter"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_report_of_a_run_says_what_its_communication_costs(cli, make_run, undrawn, language):
    run = make_run("static", extra={"comm_ms": 3.0, "hidden_comm_ms": 0.0, "collectives": 1})
    for rank in range(2):
        with CallWriter(run.calls_file(rank)) as writer:
            for step in range(50):
                writer.write(step, [Call("all_reduce", -1, step, 8, step * 10**9, step * 10**9 + 3 * 10**6)])
    code, out, _ = cli("report", run.id, "--lang", language, "-o", "-")
    assert code == 0 and "| all_reduce | 1.000 | 3.000 | 0.000 | 3.000 | 8 |" in out
    assert "`dynbench train --exposed`" in out
