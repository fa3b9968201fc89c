"""Profiled steps: the profiler held against the wire, tables by phase and operation, and what is communication."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict

import polars as pl
import pytest

from dynbench.analysis.arms import named_arms
from dynbench.analysis.checks import run_checks
from dynbench.analysis.checks.evidence import Evidence
from dynbench.analysis.merge import merge_run
from dynbench.analysis.profile import bottlenecks
from dynbench.analysis.record import Finding
from dynbench.analysis.summary import summarise
from dynbench.analysis.table_specs import TABLES
from dynbench.config.schema import Analysis
from dynbench.plugins import STRATEGIES
from dynbench.runs.atomic import write_json
from dynbench.runs.phrase import texts
from dynbench.runs.records import PROFILE_SCHEMA_VERSION, ProfileRow, RankProfile
from dynbench.runs.run import Run

Make = Callable[..., Run]
STEP_MS = 100.0


def profiled(run: Run, comm_ms: float) -> Run:
    """Two ranks whose profile says that so much of a step is an all-reduce of the backward pass."""
    rows = [
        ProfileRow("forward", "compute", 5.0, 29.0, 0.29),
        ProfileRow("backward", "compute", 5.0, 40.0, 0.4),
        ProfileRow("backward", "all_reduce", 1.0, comm_ms, comm_ms / STEP_MS),
        ProfileRow("backward", "communication", 1.0, comm_ms, comm_ms / STEP_MS),
    ]
    run.profiler_dir.mkdir()
    for rank in range(2):
        found = RankProfile(rank, 8, 2, STEP_MS, rows)
        write_json(run.profile_file(rank), {"schema_version": PROFILE_SCHEMA_VERSION, **asdict(found)})
    return run


def found(make_run: Make, profiler_ms: float, wire_ms: float) -> Finding | None:
    """What the check says where the wire timed `wire_ms` of `STEP_MS`."""
    merged = merge_run(profiled(make_run("static"), profiler_ms))
    steps = merged.steps.with_columns(comm_ms=pl.lit(wire_ms), step_time_ms_mean=pl.lit(STEP_MS))
    object.__setattr__(merged, "steps", steps)
    checks = run_checks(Evidence(named_arms({"static": [merged]}), [], Analysis()))
    return next((check for check in checks if check.id == "profiled_shares"), None)


@pytest.mark.parametrize(("profiler_ms", "wire_ms"), [(40.0, 40.0), (40.0, 43.0), (43.0, 40.0), (10.0, 20.0)])
def test_two_that_agree_or_have_little_to_tell_are_no_finding(
    make_run: Make, profiler_ms: float, wire_ms: float
) -> None:
    assert found(make_run, profiler_ms, wire_ms) is None


@pytest.mark.parametrize(
    ("profiler_ms", "wire_ms", "severity", "case"), [(50.0, 40.0, "warn", "fewer"), (40.0, 50.0, "info", "more")]
)
def test_a_wire_that_ends_its_calls_early_or_late_is_found(
    make_run: Make, profiler_ms: float, wire_ms: float, severity: str, case: str
) -> None:
    """The planted faults: calls counted as complete while the back end has them under way, and long after."""
    finding = found(make_run, profiler_ms, wire_ms)
    assert finding is not None
    assert (finding.severity, finding.cases["hint"]) == (severity, case)
    assert f"{profiler_ms:.1f}%" in finding.seen.replace(" %", "%") and f"{wire_ms:.1f}" in finding.seen


def test_the_hint_names_no_strategy_as_it_is_told_of_any(make_run: Make) -> None:
    """A run of fsdp was to send less by buckets or ps_flat, which it has not."""
    finding = found(make_run, 40.0, 50.0)
    assert finding is not None
    for hint in (finding.hint, texts("zh")["profiled_shares.hint.more"]):
        assert [name for name in STRATEGIES if re.search(rf"(?<![a-z_]){name}(?![a-z_])", hint)] == []


def test_tables_by_phase_and_operation(make_run: Make) -> None:
    profile = summarise(profiled(make_run("static"), 30.0))["profile"]
    assert isinstance(profile, dict)
    launches = {"one": [{"profile": {**profile, "phase_ms": {"backward": 60.0}}}], "none": [{"profile": None}]}
    table, phases = TABLES["profile"].table(launches), TABLES["phases"].table(launches)
    assert table is not None and phases is not None
    assert [row[:3] for row in table.rows] == [
        ["one", "forward", "compute"],
        ["one", "backward", "compute"],
        ["one", "backward", "all_reduce"],
        ["one", "backward", "communication"],
    ]
    (bottleneck,) = bottlenecks(launches)
    assert (bottleneck.share, bottleneck.of_phase) == (0.3, {"backward": 0.5})
    assert (
        TABLES["profile"].table({"none": [{"profile": None}]})
        is None
        is TABLES["phases"].table({"none": [{"profile": None}]})
    )


def test_profiled_steps_are_kept_as_csv_in_full_precision(make_run: Make) -> None:
    run = profiled(make_run("static"), 30.125)
    summarise(run)
    rows = pl.read_csv(run.path / "profile.csv")
    assert rows.columns == ["arm", "phase", "operation", "calls", "ms", "share"]
    assert rows.filter(operation="all_reduce")["ms"].to_list() == [30.125]


def test_phases_are_as_long_as_rows_say_with_what_passes_wait_for(make_run: Make) -> None:
    """What is waited for moves from sync into the pass that waits, and nothing is counted twice."""
    run = profiled(make_run("static", extra={"sync_forward_ms": 1.0, "sync_optimizer_ms": 0.5}), 30.0)
    profile = summarise(run)["profile"]
    assert isinstance(profile, dict)
    rows = merge_run(run).worker_rows().filter(pl.col("step").is_between(8, 9)).collect()
    total = sum(float(rows[name].mean()) for name in ("forward_ms", "backward_ms", "sync_ms", "optimizer_ms"))  # type: ignore[arg-type]
    assert sum(profile["phase_ms"].values()) == pytest.approx(total)
    assert profile["phase_ms"]["forward"] == pytest.approx(float(rows["forward_ms"].mean()) + 1.0)  # type: ignore[arg-type]


def test_runs_whose_rows_do_not_tell_what_passes_wait_for_have_no_phases(make_run: Make) -> None:
    profile = summarise(profiled(make_run("static"), 30.0))["profile"]
    assert isinstance(profile, dict) and profile["phase_ms"] is None
