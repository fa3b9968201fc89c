"""The state of a comparison: what is missing, what survives a restart, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.errors import RecordError
from dynbench.experiment.launch_plan import STATE_FILE, CompareState, Grouping, apart, plan_state, read_state


def planned() -> CompareState:
    return plan_state("demo", "a", apart(["a", "b"], "asked for"), 2, {"a": 7, "b": 7})


def test_a_pair_shares_its_seed_and_pairs_differ() -> None:
    seeds = {(launch.arm, launch.block): launch.seed for launch in planned().launches}

    assert seeds == {("a", 0): 7, ("b", 0): 7, ("b", 1): 8, ("a", 1): 8}


def test_what_ended_early_is_missing_but_named() -> None:
    state = planned().with_runs({0: "run0"}, done=True).with_runs({1: "run1"}, done=False)

    assert state.missing == [[1], [2], [3]]
    assert state.launches[1].run == "run1"
    assert state.arms == {"a": ["run0"], "b": []}


def test_runs_of_an_arm_come_by_block_not_by_time() -> None:
    state = planned()
    for index in (3, 2, 1, 0):
        state = state.with_runs({index: f"run{index}"}, done=True)

    assert state.arms == {"a": ["run0", "run3"], "b": ["run1", "run2"]}


def test_it_survives_a_restart(tmp_path: Path) -> None:
    state = planned().with_runs({0: "run0"}, done=True)

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


def seeds(arms: list[str]) -> dict[str, int]:
    return dict.fromkeys(arms, 0)


@given(st.integers(2, 6), st.integers(1, 5))
def test_every_arm_is_launched_once_per_block_at_the_same_mean_position(n_arms: int, half: int) -> None:
    arms = [f"arm{i}" for i in range(n_arms)]

    order = plan_state("r", arms[0], apart(arms, ""), 2 * half, seeds(arms)).launches

    assert len({(one.arm, one.block) for one in order}) == len(order) == n_arms * 2 * half
    positions = {arm: [i for i, one in enumerate(order) if one.arm == arm] for arm in arms}
    assert len({sum(found) for found in positions.values()}) == 1
    assert [one.block for one in order] == sorted(one.block for one in order)


def test_an_odd_number_of_launches_lets_drift_through() -> None:
    order = plan_state("r", "a", apart(["a", "b"], ""), 3, seeds(["a", "b"])).launches

    assert order[-1].arm == "b"
    assert sum(i for i, one in enumerate(order) if one.arm == "a") != sum(
        i for i, one in enumerate(order) if one.arm == "b"
    )


ALL = Grouping("interleaved", "they can", (("a", "b", "c"),))


def test_arms_that_share_a_launch_are_missing_until_all_are_done() -> None:
    state = plan_state("r", "a", ALL, 2, seeds(["a", "b", "c"])).with_runs({0: "r0", 1: "r1"}, done=True)

    assert state.together == [[0, 1, 2], [3, 4, 5]]
    assert state.missing == [[0, 1, 2], [3, 4, 5]]
    assert state.with_runs({2: "r2"}, done=True).missing == [[3, 4, 5]]


def test_the_arm_that_ended_a_launch_goes_on_apart_with_a_baseline_of_its_own() -> None:
    state = plan_state("r", "a", ALL, 3, seeds(["a", "b", "c"])).with_runs({0: "r0", 1: "r1", 2: "r2"}, done=True)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), seeds(["a", "b", "c"]))

    shared = [[(parted.launches[i].arm, parted.launches[i].block) for i in members] for members in parted.together]
    assert shared == [
        [("a", 0), ("b", 0), ("c", 0)],
        [("c", 1)],
        [("a", 1)],
        [("a", 1), ("b", 1)],
        [("a", 2), ("b", 2)],
        [("a", 2)],
        [("c", 2)],
    ]
    assert parted.arms["a"] == ["r0"] and len(parted.missing) == 6
    twice = parted.regrouped(parted.grouping.without("b", "a", "so did it"), seeds(["a", "b", "c"]))
    assert twice.groups == (("a",), ("c",), ("b",))


def test_arms_that_do_not_fit_together_meet_the_baseline_in_pairs_and_then_part() -> None:
    pairs = ALL.smaller("a", "too large")
    assert pairs.groups == (("a", "b"), ("a", "c"))
    assert pairs.smaller("a", "still").groups == (("a",), ("b",), ("c",))


def test_more_launches_follow_those_that_were_planned() -> None:
    state = plan_state("r", "a", ALL, 2, {"a": 5, "b": 5, "c": 5}).extended(4, {"a": 5, "b": 5, "c": 5})

    assert [one.block for one in state.launches] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert {one.launch for one in state.launches} == {0, 1, 2, 3}
    assert state.launches[-1].seed == 8


def test_a_baseline_that_ran_beside_one_arm_is_no_partner_of_an_arm_that_goes_on_apart() -> None:
    pairs = Grouping("interleaved", "large", (("a", "b"), ("a", "c")))
    state = plan_state("r", "a", pairs, 1, seeds(["a", "b", "c"])).with_runs({0: "r0", 1: "r1"}, done=True)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), seeds(["a", "b", "c"]))

    assert [[parted.launches[i].arm for i in members] for members in parted.together] == [["a", "b"], ["a"], ["c"]]
    assert [[parted.launches[i].arm for i in members] for members in parted.missing] == [["a"], ["c"]]
