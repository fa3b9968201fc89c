"""A step against the same without communication, and bytes as counted against bytes as calculated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from dynbench.analysis.arms import named_arms
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.communication import exposed_two_ways
from dynbench.analysis.checks.evidence import Evidence
from dynbench.analysis.communication import against_null, sent_bytes
from dynbench.analysis.merge import merge_run
from dynbench.analysis.record import Finding
from dynbench.analysis.selection import export_runs
from dynbench.analysis.summary import summary_of
from dynbench.config.schema import Analysis
from dynbench.runs.atomic import write_json
from dynbench.runs.export import open_export
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Make = Callable[..., Run]


def beside(*runs: Run) -> None:
    """The runs have shared a launch."""
    for run in runs:
        env = json.loads(run.env_file.read_text())
        write_json(run.env_file, env | {"together": {"id": runs[0].id, "runs": [each.id for each in runs]}})


def findings(*runs: Run) -> dict[str, Finding]:
    arms = named_arms({run.id: [merge_run(run)] for run in runs[:1]})
    return {found.id: found for found in run_checks(Evidence(arms, [], Analysis()))}


@pytest.mark.parametrize("policy", ["static", "partition"])
def test_what_a_step_takes_beyond_one_without_communication(make_run: Make, policy: str) -> None:
    """The made-up step lasts as long as its slowest rank computes, and the transfer."""
    run = make_run(policy, noise=0.0, transfer_ms=6.0)
    null = make_run(policy, noise=0.0, transfer_ms=0.0, overrides=("sync.communicate=false",))
    beside(run, null)
    summary = summary_of(merge_run(run))
    found = against_null(merge_run(run))
    assert found is not None and (found.run, found.steps) == (null.id, 40)
    assert summary["exposed_vs_null_ms"] == {"mean": pytest.approx(6.0)} == {"mean": found.exposed_ms}
    assert summary["exposed_comm_ms"] == {"mean": pytest.approx(6.0, abs=1e-4)}
    assert (found.compute_ms, found.optimizer_ms, found.other_ms) == pytest.approx((0, 0, 0), abs=1e-4)
    assert "exposed_two_ways" not in findings(run)
    assert "exposed_vs_null_ms" not in summary_of(merge_run(null))


def test_what_is_hidden_and_slows_computing_is_found_and_told(make_run: Make) -> None:
    """The planted difference: beside communication, computing takes a quarter longer."""
    slower = {"compute_ms_per_token": 0.0625, "overhead_ms": 2.5}
    run = make_run("static", noise=0.0, transfer_ms=2.0, extra={"hidden_comm_ms": 1.0}, **slower)
    null = make_run("static", noise=0.0, transfer_ms=0.0, overrides=("sync.communicate=false",))
    beside(run, null)
    finding = findings(run)["exposed_two_ways"]
    assert (finding.severity, finding.cases) == ("info", {"hint": "compute"})
    assert "2 ms of a step are exposed after its last gradient" in finding.seen
    found = against_null(merge_run(run))
    assert found is not None and found.compute_ms > 1
    assert found.exposed_ms > 3 and found.sync_ms + found.compute_ms == pytest.approx(found.exposed_ms, rel=0.3)


def test_waiting_without_communication_is_told_where_it_makes_the_difference(make_run: Make) -> None:
    """The planted difference: what a step without communication waits is as long as the transfer of one with it."""
    run = make_run("static", noise=0.0, transfer_ms=6.0)
    null = make_run("static", noise=0.0, transfer_ms=5.0, overrides=("sync.communicate=false",))
    beside(run, null)
    finding = findings(run)["exposed_two_ways"]
    assert finding.cases == {"hint": "waiting"} and "-5 ms" in finding.hint


@pytest.mark.parametrize(
    ("column", "more_ms", "hidden_ms", "case"),
    [
        ("wait_ms_mean", -5.0, 1.0, "waiting"),
        ("wait_ms_mean", 9.0, 1.0, "unknown"),
        ("compute_ms_mean", 9.0, 1.0, "compute"),
        ("compute_ms_mean", 9.0, 0.0, "unknown"),
        ("compute_ms_mean", -5.0, 1.0, "unknown"),
        ("optimizer_ms_mean", 9.0, 0.0, "optimizer"),
        ("optimizer_ms_mean", -5.0, 0.0, "unknown"),
        ("other_ms_mean", 9.0, 0.0, "other"),
    ],
)
def test_a_difference_has_a_cause_only_where_its_sign_fits(
    make_run: Make, column: str, more_ms: float, hidden_ms: float, case: str
) -> None:
    """What is hidden slows nothing down where nothing is hidden, and no pass is quicker for it."""
    run = make_run("static", noise=0.0, transfer_ms=6.0, extra={"hidden_comm_ms": hidden_ms})
    beside(run, make_run("static", noise=0.0, transfer_ms=0.0, overrides=("sync.communicate=false",)))
    merged = merge_run(run)
    planted = replace(
        merged,
        steps=merged.steps.with_columns(pl.col(column, "step_time_ms_mean") + more_ms),
        blocks=merged.blocks.with_columns(time_ms=pl.col("time_ms") + more_ms * pl.col("steps")),
    )
    (seen,) = exposed_two_ways(Evidence(named_arms({"a": [planted]}), [], Analysis()))
    assert seen.case == case
    assert seen.values["null_ms"] == pytest.approx(6.0 + more_ms, abs=1e-3)


def test_only_the_same_without_communication_counts(make_run: Make) -> None:
    run, other = make_run("static"), make_run("partition", overrides=("sync.communicate=false",))
    beside(run, other)
    assert against_null(merge_run(run)) is None
    gone = make_run("static", overrides=("sync.communicate=false",))
    beside(run, other, gone)
    assert against_null(merge_run(run)) is not None
    for file in gone.ranks_dir.glob("*.csv"):
        file.unlink()
    assert against_null(merge_run(run)) is None, "it has no rows"


@pytest.mark.parametrize(("sent", "case"), [(20.2e6, None), (21.5e6, "more"), (40e6, "more"), (15e6, "fewer")])
def test_a_collective_past_the_wire_is_found(make_run: Make, sent: float, case: str | None) -> None:
    run = make_run("static", extra={"bytes_wire": 20_000_000, "bytes_sent": int(sent), "collectives": 40})
    assert sent_bytes(merge_run(run)).ratio == pytest.approx(sent / 20e6)
    finding = findings(run).get("bytes_sent")
    if case is None:
        assert finding is None
        return
    assert finding is not None and finding.severity == "warn" and finding.cases == {"hint": case}
    assert f"{sent / 20e6:.2f} times" in finding.seen


@pytest.mark.parametrize(("messages", "told"), [(60, ("info", "headers")), (4, ("warn", "more"))])
def test_what_headers_of_small_messages_explain_is_told_as_theirs(
    make_run: Make, messages: int, told: tuple[str, str]
) -> None:
    """Of 60 kB a step, 14.4 kB more are sent: 240 B of each of 60 messages, or more than headers of four can be."""
    counts = {"bytes_wire": 60_000, "bytes_sent": 74_400, "collectives": messages}
    run = make_run("static", extra={"comm_ms": 1.0, "hidden_comm_ms": 0.0, **counts})
    finding = findings(run)["bytes_sent"]
    assert (finding.severity, finding.cases["hint"]) == told
    assert finding.values["ratio"] == pytest.approx(1.24) == summary_of(merge_run(run))["bytes_sent_ratio"]
    if messages == 60:
        assert finding.values["message_bytes"] == 1000


def test_why_bytes_are_not_held_against_each_other(make_run: Make) -> None:
    silent = make_run("static", extra={"bytes_wire": 0, "bytes_sent": 500, "collectives": 0})
    uncounted = make_run("static", extra={"bytes_wire": 500, "bytes_sent": "", "collectives": 1})
    for run, reason in ((silent, "nothing is sent"), (uncounted, "under Linux")):
        found = sent_bytes(merge_run(run))
        assert found.ratio is None and reason in str(found.reason)
        assert "bytes_sent" not in findings(run)


def test_an_exported_run_takes_its_like_without_communication_along(
    make_run: Make, store: RunStore, tmp_path: Path
) -> None:
    """Named alone, it still tells what a step takes beyond one without communication; its like is no run of its own."""
    run = make_run("static", noise=0.0, transfer_ms=6.0)
    null = make_run("static", noise=0.0, transfer_ms=0.0, overrides=("sync.communicate=false",))
    beside(run, null)
    export_runs([run.id], store, tmp_path / "one.zip")
    with open_export(tmp_path / "one.zip") as export:
        assert [each.id for each in export.runs] == [run.id]
        found = against_null(merge_run(export.runs[0]))
    assert found is not None and (found.run, found.exposed_ms) == (null.id, pytest.approx(6.0))
