"""What strategies time of communication, by side, in summaries and tables."""

from __future__ import annotations

import pytest
from languages import english_words
from unit.analysis.conftest import Fake, build_run

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summarise, summary_of
from dynbench.analysis.table_specs import TABLES
from dynbench.plugins import STRATEGIES
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.columns import COMM_COLUMNS, Column, write_columns
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

timed_table = TABLES["timed"].table
COMM, *_ = COMM_COLUMNS
PUSH, SEND = Column("push_ms", "number", "ms", "Of workers."), Column("send_ms", "number", "ms", "Of servers.")
COUNT = Column("messages", "integer", "", "No time.")
DECLARED = [COMM, PUSH, SEND, COUNT]


def served(store: RunStore, servers: int = 1, **fields: object) -> Run:
    """A run whose workers push for 2 ms in warm-up and 4 ms after it, and whose servers send for 6 ms."""
    names = [column.name for column in DECLARED]
    run = build_run(store, Fake("partition", servers=servers, extra=dict.fromkeys(names, 1.5), **fields))
    write_columns(run.ranks_dir, DECLARED)
    for rank in range(servers + 2):
        lines = run.rank_file(rank).read_text().splitlines()
        for place, line in enumerate(lines[1:], 1):
            kept = line.rsplit(",", len(names))[0]
            times = "9,,6,4" if rank < servers else f"8,{2 if place <= 10 else 4},,4"
            lines[place] = f"{kept},{times}"
        run.rank_file(rank).write_text("\n".join(lines) + "\n")
    return run


@pytest.mark.parametrize("servers", [1, 2])
def test_each_side_has_the_means_of_its_measured_rows(store: RunStore, servers: int) -> None:
    summary = summary_of(merge_run(served(store, servers)))
    assert summary["timed_ms"] == {
        "workers": {"comm_ms": pytest.approx(8), "push_ms": pytest.approx(4)},
        "servers": {"comm_ms": pytest.approx(9), "send_ms": pytest.approx(6), "optimizer_ms": 0},
    }


def test_the_memory_of_servers_is_not_in_that_of_workers(store: RunStore) -> None:
    summary = summary_of(merge_run(served(store)))
    assert summary["peak_mem_mb"]["servers_max"] == 0
    assert summary["peak_mem_mb"]["max"] > 400
    assert summary_of(merge_run(build_run(store, Fake())))["peak_mem_mb"]["servers_max"] is None


def test_runs_without_columns_of_their_own_have_no_table(store: RunStore) -> None:
    run = build_run(store, Fake(extra={"comm_ms": 1.5}))
    write_columns(run.ranks_dir, [COMM])
    timed = summary_of(merge_run(run))["timed_ms"]
    assert timed == {"workers": {"comm_ms": pytest.approx(1.5)}, "servers": {}}
    assert timed_table({"a": [{"timed_ms": timed}], "old": [{}]}) is None
    assert summary_of(merge_run(build_run(store, Fake())))["timed_ms"] == {"workers": {}, "servers": {}}


def test_a_declared_column_that_no_row_has_is_left_out(store: RunStore) -> None:
    run = build_run(store, Fake(extra={"comm_ms": 1.5}))
    write_columns(run.ranks_dir, [COMM, PUSH])
    assert "push_ms" not in summary_of(merge_run(run))["timed_ms"]["workers"]


def test_arms_and_sides_are_rows(store: RunStore) -> None:
    summary = summary_of(merge_run(served(store)))
    plain = {"timed_ms": {"workers": {"comm_ms": 5.0}, "servers": {}}}
    table = timed_table({"ddp": [plain, plain], "ps": [summary]})
    assert table is not None
    assert table.columns == ["arm", "comm", "push", "send", "optimizer"]
    assert table.rows == [
        ["ddp, workers", "5.000", "", "", ""],
        ["ps, workers", "8.000", "4.000", "", ""],
        ["ps, servers", "9.000", "", "6.000", "0.000"],
    ]


def test_the_table_stands_in_the_summary_and_is_printed(store: RunStore, cli, undrawn: None) -> None:
    run = served(store)
    summarise(run)
    assert f"| {run.label}, servers |" in (run.path / "summary.md").read_text()
    code, out, err = cli("analyze", run.id)
    assert code == 0, err
    assert "servers" in out and "push" in out


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_column_of_a_strategy_has_a_heading(language: str) -> None:
    names = {
        column.name: 1.0
        for entry in STRATEGIES.values()
        if not isinstance(entry.target, type)
        for column in entry.load().columns
        if column.unit == "ms"
    }
    sides = {"workers": {"comm_ms": 1.0, **names}, "servers": {"optimizer_ms": 1.0}}
    table = timed_table({"一": [{"timed_ms": sides}]}, load_template(language).label)
    assert table is not None
    assert len(set(table.columns)) == 3 + len(names)
    if language != "en":
        assert english_words(table.markdown(whole=True), ("rank",)) == []
