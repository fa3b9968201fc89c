"""Steps under torch.profiler: traces of every rank, a table, and rows that are never measured."""

from __future__ import annotations

import json

import pytest
from multiproc.launches import Launch

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of

pytestmark = [pytest.mark.multiproc, pytest.mark.alone]


def test_the_profiler_and_the_wire_agree_on_what_communication_takes(launch: Launch) -> None:
    """One all-reduce of all gradients behind the backward pass."""
    run = launch("sync.name=flat", "train.warmup_steps=4", "train.profile_steps=2", "train.steps=2")
    for rank in range(2):
        trace = json.loads((run.profiler_dir / f"rank_{rank}.pt.trace.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"dynbench::step", "dynbench::forward", "dynbench::backward", "dynbench::all_reduce"} <= names
    merged = merge_run(run)
    assert merged.measured["step"].to_list() == [4, 5]
    profile = summary_of(merged)["profile"]
    assert isinstance(profile, dict) and (profile["first_step"], profile["steps"], profile["ranks"]) == (2, 2, 2)
    rows = {(row["phase"], row["operation"]): row for row in profile["rows"]}
    assert rows["backward", "all_reduce"]["calls"] == 1
    in_phase = {phase: rows.get((phase, "all_reduce"), {"ms": 0.0})["ms"] for phase in ("forward", "backward")}
    assert rows["forward", "compute"]["share"] > 0.01
    # A thread of gloo's ends a call in the profile after those that wait for it go on, seldom by more than a moment.
    assert in_phase["forward"] < 0.1 * in_phase["backward"]
    assert profile["comm_share"] == pytest.approx(profile["wire_comm_share"], rel=0.3), "measured twice"
