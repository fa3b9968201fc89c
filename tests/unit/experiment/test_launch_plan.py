"""Which arms share a launch and why, in what order they are launched, and what is done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.layers import load_config
from dynbench.config.recipes import Launches
from dynbench.config.schema import Config, changed
from dynbench.errors import ConfigError, RecordError
from dynbench.experiment import launch_plan
from dynbench.experiment.launch_plan import (
    STATE_FILE,
    CompareState,
    Grouping,
    apart,
    decide_grouping,
    plan_state,
    read_state,
)
from dynbench.plugins import STRATEGIES, StrategyEntry

BASE = ("launch.launcher=torchrun", "launch.nproc=2", "launch.threads=1", "launch.device=cpu", "workload.dropout=0")
PARTITION = "schedule.policy=partition"
IMAGES = "workload.name=image_classification"


def arms(**settings: tuple[str, ...]) -> dict[str, Config]:
    return {name: load_config(None, (*BASE, *given)) for name, given in settings.items()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(((), (setting,)) for setting in (PARTITION, "launch.slowdown={0: 1.5}", "train.precision=bf16")),
        *(((), (setting,)) for setting in ("train.eval_every=5", "sync.bucket_mb=1", "train.seed=4")),
        ((IMAGES,), ("workload.name=mlp",)),
        (("workload.name=one.py:Mine",), ("workload.name=one.py:Mine",)),
    ],
    ids=str,
)
def test_arms_that_can_share_a_process_do(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    two = arms(a=one, b=other)
    found = decide_grouping(Launches(count=3), two, "a")
    assert (found.mode, found.groups) == ("interleaved", (("a", "b"),))
    assert decide_grouping(Launches(mode="apart"), two, "a").groups == (("a",), ("b",))


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ((), (PARTITION, "launch.nproc=3"), "launch.nproc is 2 in arm a, 3 in arm b"),
        ((), ("launch.threads=2",), "launch.threads is 1 in arm a, 2 in arm b"),
        ((), ("launch.timeout_s=60",), "launch.timeout_s is 600 in arm a, 60 in arm b"),
        ((), ("train.steps=7",), "train.steps is .* in arm a, 7 in arm b"),
        ((), ("train.warmup_steps=0",), "train.warmup_steps is .* in arm a, 0 in arm b"),
        ((PARTITION,), (PARTITION, "train.profile_steps=2"), "train.profile_steps of arm b is 2"),
        ((IMAGES, "workload.workers=2"), ("workload.name=mlp",), "workload.workers of arm a is 2"),
        (("workload.name=one.py:Mine",), ("workload.name=two.py:Mine",), "workload.name is "),
    ],
    ids=str,
)
def test_what_a_process_has_once_or_disturbs_the_turns_of_others_parts_them(
    one: tuple[str, ...], other: tuple[str, ...], reason: str
) -> None:
    two = arms(a=one, b=other)
    found = decide_grouping(Launches(), two, "a")
    assert (found.mode, found.groups) == ("apart", (("a",), ("b",)))
    assert re.search(reason, found.reason)
    with pytest.raises(ConfigError, match=f"launches.mode: interleaved, but {reason}"):
        decide_grouping(Launches(mode="interleaved"), two, "a")
    with pytest.raises(ConfigError, match=r"launches\.count: 3 launches per arm") as refused:
        decide_grouping(Launches(count=3), two, "a")
    assert found.reason in refused.value.hint


def test_many_arms_meet_the_baseline_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan, "MOST_ARMS", 2)
    found = decide_grouping(Launches(), arms(static=(), part=(PARTITION,), window=("schedule.window=8",)), "part")
    assert found.groups == (("part", "static"), ("part", "window"))
    assert "3 arms are more than 2" in found.reason


def test_what_works_across_steps_takes_longer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = StrategyEntry("ddp", "works on", "dynbench.sync.ddp:Ddp", across_steps=True)
    monkeypatch.setattr(type(STRATEGIES), "find", lambda *_: entry)
    two = arms(static=(), part=(PARTITION,))
    found = decide_grouping(Launches(), two, "static")
    assert found.mode == "apart" and "turns of 8 steps" in found.reason
    assert decide_grouping(Launches(block=8), two, "static").mode == "interleaved"


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (("local_sgd", "sync.inner_steps=1"), 1),
        (("local_sgd", "sync.inner_steps=5"), 5),
        (("local_sgd_torch", "sync.inner_steps=5"), 5),
        (("diloco", "sync.inner_steps=20"), 20),
        (("diloco", "sync.inner_steps=5", "sync.overlap_steps=2"), 8),
    ],
    ids=str,
)
def test_a_turn_ends_with_a_synchronisation(settings: tuple[str, ...], steps: int) -> None:
    name, *options = settings
    two = arms(static=(), local=(f"sync.name={name}", *options))
    assert decide_grouping(Launches(block=steps), two, "static").mode == "interleaved"
    if steps > 1:
        found = decide_grouping(Launches(block=steps - 1), two, "static")
        assert found.mode == "apart" and f"sync.name {name} of arm local" in found.reason
        assert f"turns of {steps} steps (launches.block, --block), not of {steps - 1}" in found.reason


@pytest.mark.parametrize(("steps", "mode"), [(6, "apart"), (10, "interleaved")])
def test_short_epochs_leave_too_little_between_evaluations(steps: int, mode: str) -> None:
    epochs = {"train.epochs": 2, "train.steps": steps, "train.warmup_steps": 0}
    short = {name: changed(config, epochs) for name, config in arms(static=(), part=(PARTITION,)).items()}
    found = decide_grouping(Launches(), short, "static")
    assert found.mode == mode
    assert ("an epoch of arm static is 3 steps" in found.reason) == (mode == "apart")


ALL = Grouping("interleaved", "they can", (("a", "b", "c"),))
SEEDS = {"a": 5, "b": 5, "c": 5}


def planned(grouping: Grouping = ALL, blocks: int = 2, done: int = 0) -> CompareState:
    """A comparison with `a` as its baseline, of which the first arms have run."""
    runs = {index: f"r{index}" for index in range(done)}
    return plan_state("demo", "a", grouping, blocks, SEEDS).with_runs(runs, done=True)


def arms_of(state: CompareState, launches: list[list[int]]) -> list[list[tuple[str, int]]]:
    """Arm and block of all that each launch holds."""
    return [[(state.launches[i].arm, state.launches[i].block) for i in members] for members in launches]


def test_runs_of_an_arm_come_by_block_and_what_ended_early_is_missing_but_named(tmp_path: Path) -> None:
    state = planned(apart(["a", "b"], "asked for"), done=1).with_runs({1: "r1"}, done=False)
    seeds = {(launch.arm, launch.block): launch.seed for launch in state.launches}
    assert seeds == {("a", 0): 5, ("b", 0): 5, ("b", 1): 6, ("a", 1): 6}
    assert state.missing == [[1], [2], [3]] and state.launches[1].run == "r1"
    assert state.arms == {"a": ["r0"], "b": []}
    for index in (3, 2, 1):
        state = state.with_runs({index: f"r{index}"}, done=True)
    assert state.arms == {"a": ["r0", "r3"], "b": ["r1", "r2"]}
    state.write(tmp_path)
    assert read_state(tmp_path) == state


@pytest.mark.parametrize("text", [None, "", "[1]", '{"recipe": "x"}', '{"recipe": 1, "baseline": "a", "launches": []}'])
def test_a_file_that_is_broken_or_missing_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / STATE_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=STATE_FILE):
        read_state(tmp_path)


@given(st.integers(2, 6), st.integers(2, 9))
def test_every_arm_is_launched_once_per_block_at_the_same_mean_position_of_an_even_number(
    n_arms: int, blocks: int
) -> None:
    names = [f"arm{i}" for i in range(n_arms)]

    order = plan_state("r", names[0], apart(names, ""), blocks, dict.fromkeys(names, 0)).launches

    assert len({(one.arm, one.block) for one in order}) == len(order) == n_arms * blocks
    positions = {arm: [i for i, one in enumerate(order) if one.arm == arm] for arm in names}
    drift_through = len({sum(found) for found in positions.values()}) > 1
    assert drift_through == (blocks % 2 == 1)
    assert [one.block for one in order] == sorted(one.block for one in order)


def test_arms_that_share_a_launch_are_missing_until_all_are_done() -> None:
    state = planned(done=2)
    assert state.launch_members == [[0, 1, 2], [3, 4, 5]]
    assert state.missing == [[0, 1, 2], [3, 4, 5]]
    assert planned(done=3).missing == [[3, 4, 5]]


def test_the_arm_that_ended_a_launch_goes_on_apart_with_a_baseline_of_its_own() -> None:
    state = planned(blocks=3, done=3)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), SEEDS)

    assert arms_of(parted, parted.launch_members) == [
        [("a", 0), ("b", 0), ("c", 0)], [("c", 1)], [("a", 1)], [("a", 1), ("b", 1)], [("a", 2), ("b", 2)],
        [("a", 2)], [("c", 2)],
    ]  # fmt: skip
    assert parted.arms["a"] == ["r0"] and len(parted.missing) == 6
    twice = parted.regrouped(parted.grouping.without("b", "a", "so did it"), SEEDS)
    assert twice.groups == (("a",), ("c",), ("b",))


def test_arms_that_do_not_fit_together_meet_the_baseline_in_pairs_and_then_part() -> None:
    pairs = ALL.smaller("a", "too large")
    assert pairs.groups == (("a", "b"), ("a", "c"))
    assert pairs.smaller("a", "still").groups == (("a",), ("b",), ("c",))


def test_more_launches_follow_those_that_were_planned() -> None:
    state = planned().extended(4, SEEDS)

    assert [one.block for one in state.launches] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert {one.launch for one in state.launches} == {0, 1, 2, 3}
    assert state.launches[-1].seed == 8


def test_a_baseline_that_ran_beside_one_arm_is_no_partner_of_an_arm_that_goes_on_apart() -> None:
    state = planned(Grouping("interleaved", "large", (("a", "b"), ("a", "c"))), 1, done=2)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), SEEDS)

    assert arms_of(parted, parted.launch_members) == [[("a", 0), ("b", 0)], [("a", 0)], [("c", 0)]]
    assert arms_of(parted, parted.missing) == [[("a", 0)], [("c", 0)]]
