"""The state of a comparison: what is missing, what survives a restart, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.errors import RecordError
from dynbench.experiment.order import abba_order
from dynbench.experiment.state import STATE_FILE, CompareState, plan_state, read_state


def planned() -> CompareState:
    return plan_state("demo", "a", abba_order(["a", "b"], 2), {"a": 7, "b": 7})


def test_a_pair_shares_its_seed_and_pairs_differ() -> None:
    seeds = {(launch.arm, launch.block): launch.seed for launch in planned().launches}

    assert seeds == {("a", 0): 7, ("b", 0): 7, ("b", 1): 8, ("a", 1): 8}


def test_what_ended_early_is_missing_but_named() -> None:
    state = planned().with_run(0, "run0", done=True).with_run(1, "run1", done=False)

    assert state.missing == [1, 2, 3]
    assert state.launches[1].run == "run1"
    assert state.arms == {"a": ["run0"], "b": []}


def test_runs_of_an_arm_come_by_block_not_by_time() -> None:
    state = planned()
    for index in (3, 2, 1, 0):
        state = state.with_run(index, f"run{index}", done=True)

    assert state.arms == {"a": ["run0", "run3"], "b": ["run1", "run2"]}


def test_it_survives_a_restart(tmp_path: Path) -> None:
    state = planned().with_run(0, "run0", done=True)

    state.write(tmp_path)

    assert read_state(tmp_path) == state


@pytest.mark.parametrize("text", ["", "[1]", '{"recipe": "x"}', '{"recipe": 1, "baseline": "a", "launches": []}'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text, encoding="utf-8")

    with pytest.raises(RecordError, match=STATE_FILE):
        read_state(tmp_path)


def test_a_folder_that_is_no_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_state(tmp_path)
