"""Which arms share a launch and why, in what order they are launched, and what is done."""

from __future__ import annotations

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


def arms(**settings: tuple[str, ...]) -> dict[str, Config]:
    return {"static": load_config(None, BASE)} | {
        name: load_config(None, (*BASE, *given)) for name, given in settings.items()
    }


PARTITION = ("schedule.policy=partition",)


def test_arms_that_can_share_a_process_do() -> None:
    found = decide_grouping(Launches(), arms(part=PARTITION, window=("schedule.window=8",)), "static")
    assert (found.mode, found.groups) == ("interleaved", (("static", "part", "window"),))
    assert "can share" in found.reason


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("launch.nproc", 3),
        ("launch.threads", 2),
        ("launch.timeout_s", 60),
        ("train.steps", 7),
        ("train.warmup_steps", 0),
    ],
)
def test_what_a_process_has_once_parts_them(key: str, value: int) -> None:
    different = arms(part=(*PARTITION, f"{key}={value}"))
    found = decide_grouping(Launches(), different, "static")
    assert (found.mode, found.groups) == ("apart", (("static",), ("part",)))
    assert f"{key} is " in found.reason and f"{value} in arm part" in found.reason
    with pytest.raises(ConfigError, match=rf"launches.mode: interleaved, but {key} is"):
        decide_grouping(Launches(mode="interleaved"), different, "static")


@pytest.mark.parametrize(
    "setting",
    ["launch.slowdown={0: 1.5}", "train.precision=bf16", "train.eval_every=5", "sync.bucket_mb=1", "train.seed=4"],
)
def test_what_each_arm_has_by_itself_does_not(setting: str) -> None:
    assert decide_grouping(Launches(), arms(part=(*PARTITION, setting)), "static").mode == "interleaved"


def test_apart_when_asked() -> None:
    found = decide_grouping(Launches(mode="apart"), arms(part=PARTITION), "static")
    assert (found.mode, found.reason) == ("apart", "launches.mode is apart")


def test_many_arms_meet_the_baseline_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan, "MOST_ARMS", 2)
    found = decide_grouping(Launches(), arms(part=PARTITION, window=("schedule.window=8",)), "part")
    assert found.groups == (("part", "static"), ("part", "window"))
    assert "3 arms are more than 2" in found.reason


def test_what_works_across_steps_takes_longer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = StrategyEntry("ddp", "works on", "dynbench.sync.ddp:Ddp", across_steps=True)
    monkeypatch.setattr(type(STRATEGIES), "find", lambda *_: entry)
    two = arms(part=PARTITION)
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
)
def test_ranks_that_step_apart_meet_no_sooner_because_of_turns(settings: tuple[str, ...], steps: int) -> None:
    name, *options = settings
    two = arms(local=(f"sync.name={name}", *options))
    assert decide_grouping(Launches(block=steps), two, "static").mode == "interleaved"
    if steps > 1:
        found = decide_grouping(Launches(block=steps - 1), two, "static")
        assert found.mode == "apart" and f"sync.name {name} of arm local" in found.reason
        assert f"turns of {steps} steps (launches.block, --block), not of {steps - 1}" in found.reason


IMAGES = "workload.name=image_classification"


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (PARTITION, (*PARTITION, "train.profile_steps=2"), "train.profile_steps of arm b is 2"),
        ((IMAGES, "workload.workers=2"), ("workload.name=mlp",), "workload.workers of arm a is 2"),
        ((IMAGES,), ("workload.name=mlp",), None),
        (("workload.name=one.py:Mine",), ("workload.name=two.py:Mine",), "workload.name is "),
        (("workload.name=one.py:Mine",), ("workload.name=one.py:Mine",), None),
    ],
    ids=["profiled", "decoding ahead", "images", "code of two places", "code of one place"],
)
def test_what_disturbs_the_turns_of_others_goes_apart(
    one: tuple[str, ...], other: tuple[str, ...], reason: str | None
) -> None:
    made = arms(a=one, b=other)
    two = {name: made[name] for name in ("a", "b")}
    found = decide_grouping(Launches(), two, "a")
    assert found.mode == ("interleaved" if reason is None else "apart") and (reason or "") in found.reason
    if reason is not None:
        with pytest.raises(ConfigError, match=reason):
            decide_grouping(Launches(mode="interleaved"), two, "a")


@pytest.mark.parametrize(("steps", "mode"), [(6, "apart"), (10, "interleaved")])
def test_short_epochs_leave_too_little_between_evaluations(steps: int, mode: str) -> None:
    short = {
        name: changed(config, {"train.epochs": 2, "train.steps": steps, "train.warmup_steps": 0})
        for name, config in arms(part=PARTITION).items()
    }
    found = decide_grouping(Launches(), short, "static")
    assert found.mode == mode
    assert ("an epoch of arm static is 3 steps" in found.reason) == (mode == "apart")


def test_an_odd_number_of_launches_is_refused_only_where_arms_go_apart() -> None:
    three, shared = Launches(count=3), arms(part=PARTITION)
    assert decide_grouping(three, shared, "static").mode == "interleaved"
    profiled = arms(part=(*PARTITION, "train.profile_steps=2"))
    with pytest.raises(ConfigError, match=r"launches\.count: 3 launches per arm") as refused:
        decide_grouping(three, profiled, "static")
    assert "train.profile_steps of arm part" in refused.value.hint
    assert decide_grouping(Launches(count=4), profiled, "static").mode == "apart"


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


def arms_of(state: CompareState, launches: list[list[int]]) -> list[list[tuple[str, int]]]:
    """Arm and block of all that each launch holds."""
    return [[(state.launches[i].arm, state.launches[i].block) for i in members] for members in launches]


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

    assert state.launch_members == [[0, 1, 2], [3, 4, 5]]
    assert state.missing == [[0, 1, 2], [3, 4, 5]]
    assert state.with_runs({2: "r2"}, done=True).missing == [[3, 4, 5]]


def test_the_arm_that_ended_a_launch_goes_on_apart_with_a_baseline_of_its_own() -> None:
    state = plan_state("r", "a", ALL, 3, seeds(["a", "b", "c"])).with_runs({0: "r0", 1: "r1", 2: "r2"}, done=True)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), seeds(["a", "b", "c"]))

    assert arms_of(parted, parted.launch_members) == [
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

    assert arms_of(parted, parted.launch_members) == [[("a", 0), ("b", 0)], [("a", 0)], [("c", 0)]]
    assert arms_of(parted, parted.missing) == [[("a", 0)], [("c", 0)]]
