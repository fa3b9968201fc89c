"""Which arms share a launch, in what order they are launched, what is done, and what comes before a training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.layers import load_config
from dynbench.config.recipes import Launches
from dynbench.config.schema import Config, changed, differences, is_like
from dynbench.engine.launching import run_launch as attach
from dynbench.engine.launching.resolve import Machine
from dynbench.errors import ConfigError, RecordError, UsageError
from dynbench.experiment import launch_plan, training
from dynbench.experiment.launch_plan import (
    STATE_FILE,
    CompareState,
    Grouping,
    apart,
    decide_grouping,
    plan_state,
    read_state,
)
from dynbench.experiment.training import exposed_turns, run_training, turn_steps, with_null_arms
from dynbench.plugins import STRATEGIES
from dynbench.runs.store import RunStore

BASE = "launch.launcher=torchrun launch.nproc=2 launch.threads=1 launch.device=cpu workload.dropout=0"
PARTITION = "schedule.policy=partition"
IMAGES = "workload.name=image_classification"
ONE, OTHER = (f"workload.name={name}.py:Mine" for name in ("one", "two"))


def arms(**settings: str) -> dict[str, Config]:
    return {name: load_config(None, f"{BASE} {given}".split()) for name, given in settings.items()}


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        *(("", setting, None) for setting in (PARTITION, "launch.slowdown=0:1.5", "train.precision=bf16")),
        *(("", setting, None) for setting in ("train.eval_every=5", "sync.bucket_mb=1", "train.seed=4")),
        (IMAGES, "workload.name=mlp", None),
        (ONE, ONE, None),
        ("", f"{PARTITION} launch.nproc=3", "launch.nproc is 2 in arm a, 3 in arm b"),
        ("", "launch.threads=2", "launch.threads is 1 in arm a, 2 in arm b"),
        ("", "launch.timeout_s=60", "launch.timeout_s is 600 in arm a, 60 in arm b"),
        ("", "train.steps=7", "train.steps is .* in arm a, 7 in arm b"),
        ("", "train.warmup_steps=0", "train.warmup_steps is .* in arm a, 0 in arm b"),
        (PARTITION, f"{PARTITION} train.profile_steps=2", "train.profile_steps of arm b is 2"),
        (f"{IMAGES} workload.workers=2", "workload.name=mlp", "workload.workers of arm a is 2"),
        (ONE, OTHER, "workload.name is "),
    ],
    ids=str,
)
def test_arms_share_a_process_but_for_what_it_has_once_or_what_disturbs_the_turns_of_others(
    one: str, other: str, reason: str | None
) -> None:
    two, alone = arms(a=one, b=other), (("a",), ("b",))
    found = decide_grouping(Launches(), two, "a")
    assert (found.mode, found.groups) == (("apart", alone) if reason else ("interleaved", (("a", "b"),)))
    assert decide_grouping(Launches(mode="apart"), two, "a").groups == alone
    if reason is None:
        assert decide_grouping(Launches(count=3), two, "a") == found
        return
    assert re.search(reason, found.reason)
    with pytest.raises(ConfigError, match=f"launches.mode: interleaved, but {reason}"):
        decide_grouping(Launches(mode="interleaved"), two, "a")
    with pytest.raises(ConfigError, match=r"launches\.count: 3 launches per arm") as refused:
        decide_grouping(Launches(count=3), two, "a")
    assert found.reason in refused.value.hint


def test_many_arms_meet_the_baseline_in_pairs_and_their_likes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, exposed, said in ((2, "false", "3 arms"), (5, "true", "3 arms and 3 without communication")):
        monkeypatch.setattr(launch_plan, "MOST_ARMS", most)
        own = f"train.exposed={exposed}"
        three = arms(static=own, part=f"{own} {PARTITION}", window=f"{own} schedule.window=8")
        found = decide_grouping(Launches(), three, "part")
        assert found.groups == (("part", "static"), ("part", "window"))
        assert f"{said} are more than {most}" in found.reason


TURNS = {
    "local_sgd sync.inner_steps=1": 1,
    "local_sgd sync.inner_steps=5": 5,
    "local_sgd_torch sync.inner_steps=5": 5,
    "diloco sync.inner_steps=20": 20,
    "zero1": 8,
    "diloco sync.inner_steps=5 sync.overlap_steps=2": 8,
}
"""A strategy with its options, and the steps between which nothing of it is under way."""


@pytest.mark.parametrize("sync", TURNS)
def test_a_turn_ends_with_a_synchronisation(sync: str) -> None:
    name, steps = sync.split()[0], TURNS[sync]
    two = arms(static="", local=f"sync.name={sync}")
    assert decide_grouping(Launches(block=steps), two, "static").mode == "interleaved"
    if steps > 1:
        found = decide_grouping(Launches(block=steps - 1), two, "static")
        assert found.mode == "apart" and f"sync.name {name} of arm local" in found.reason
        assert f"turns of {steps} steps (launches.block, --block), not of {steps - 1}" in found.reason


@pytest.mark.parametrize(("steps", "mode"), [(6, "apart"), (10, "interleaved")])
def test_short_epochs_leave_too_little_between_evaluations(steps: int, mode: str) -> None:
    epochs = {"train.epochs": 2, "train.steps": steps, "train.warmup_steps": 0}
    short = {name: changed(config, epochs) for name, config in arms(static="", part=PARTITION).items()}
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


def test_a_file_that_is_broken_or_missing_is_named(tmp_path: Path) -> None:
    for text in ("", '{"recipe": 1, "baseline": "a", "launches": []}'):
        with pytest.raises(RecordError, match=STATE_FILE):
            read_state(tmp_path)
        (tmp_path / STATE_FILE).write_text(text, encoding="utf-8")


@given(st.integers(2, 6), st.integers(2, 9))
def test_every_arm_is_launched_once_per_block_at_the_same_mean_position_of_an_even_one(
    n_arms: int, blocks: int
) -> None:
    names = [f"arm{i}" for i in range(n_arms)]
    first = plan_state("r", names[0], apart(names, ""), 1, dict.fromkeys(names, 0))
    order = first.extended(blocks, dict.fromkeys(names, 0)).launches

    assert len({(one.arm, one.block) for one in order}) == len(order) == n_arms * blocks
    positions = {arm: [i for i, one in enumerate(order) if one.arm == arm] for arm in names}
    drift_through = len({sum(found) for found in positions.values()}) > 1
    assert drift_through == (blocks % 2 == 1)
    assert [one.block for one in order] == sorted(one.block for one in order)


def test_arms_that_share_a_launch_are_missing_until_all_are_done() -> None:
    assert planned(done=2).missing == planned().launch_members == [[0, 1, 2], [3, 4, 5]]
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


def test_a_baseline_that_ran_beside_one_arm_is_no_partner_of_an_arm_that_goes_on_apart() -> None:
    state = planned(Grouping("interleaved", "large", (("a", "b"), ("a", "c"))), 1, done=2)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), SEEDS)

    assert arms_of(parted, parted.launch_members) == [[("a", 0), ("b", 0)], [("a", 0)], [("c", 0)]]
    assert arms_of(parted, parted.missing) == [[("a", 0)], [("c", 0)]]


REAL = ("launch.launcher=torchrun", "launch.nproc=2", "launch.device=cpu", "workload.subset=96")


def real(*settings: str, exposed: bool = True) -> Config:
    return load_config(None, [*REAL, "train.global_batch=12", f"train.exposed={exposed}", *settings])


@pytest.mark.parametrize("sync", STRATEGIES)
def test_every_strategy_has_a_like_that_sends_nothing_or_says_why_not(tmp_path: Path, sync: str) -> None:
    entry = STRATEGIES[sync]
    if entry.servers or not entry.trains:
        with pytest.raises(ConfigError, match=r"train\.exposed: true, but .*(server steps by|sends nothing already)"):
            real(f"sync.name={sync}")
        return
    config = real(f"sync.name={sync}", "train.save_model=true", "train.eval_samples=64")
    one, null = with_null_arms([("with", config, {"name": "a"})])
    assert set(differences(one.config, null.config)) == {"sync.communicate", "train.save_model", "train.exposed"}
    assert is_like(null.config, config) and not is_like(config, null.config) and not is_like(config, config)
    turns, several = exposed_turns(config, RunStore(tmp_path)), entry.across_steps or entry.reads("inner_steps")
    assert (turns.arms, turns.block) == ((one.name, null.name), 8 if several else 1)


def test_ranks_that_step_apart_take_turns_of_as_many_steps(tmp_path: Path) -> None:
    config = real("sync.name=diloco", "sync.inner_steps=20", "sync.overlap_steps=2")
    assert exposed_turns(config, RunStore(tmp_path)).block == 20
    assert turn_steps(Launches(), [config]) == 20 and turn_steps(Launches(block=32), [config]) == 32
    assert turn_steps(Launches(), [config, config]) == 1, "checked where arms meet"


def test_what_cannot_take_turns_is_refused_also_where_arms_are_apart(tmp_path: Path) -> None:
    config = real("train.eval_every=2")
    for mode in ("apart", "auto"):
        with pytest.raises(ConfigError, match=r"train\.exposed: true, but train\.eval_every of arm a is 2 steps"):
            decide_grouping(Launches(mode=mode), {"a": config, "b": real()}, "b")
    with pytest.raises(ConfigError, match=r"train\.exposed: true, but train\.eval_every"):
        exposed_turns(config, RunStore(tmp_path))


def test_only_exposed_arms_have_a_null_arm_and_each_is_known_by_its_arm() -> None:
    plain, flat = real(exposed=False), real("sync.name=flat")
    arms = with_null_arms([("ps", plain, {"name": "ps-1"}), ("flat", flat, {"name": "flat-1", "replace": True})])
    assert arms[-1].naming["replace"]
    assert [(one.name, one.member, one.is_null, one.naming["name"], one.config.sync.communicate) for one in arms] == [
        ("ps", 0, False, "ps-1", True),
        ("flat", 1, False, "flat-1", True),
        ("flat-null", 1, True, "flat-1-null", False),
    ]


def test_a_rank_that_torchrun_started_launches_no_two_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "started_as_rank", lambda _: True)
    monkeypatch.setattr(attach, "join_training", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(UsageError, match=r"train\.exposed: true launches two arms"):
        run_training(real(), RunStore(tmp_path))


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", True),
        ("schedule.capacity=8", False),
        ("launch.device=cpu", False),
        ("launch.nnodes=2 launch.rdzv_endpoint=a:1", False),
    ],
)
def test_a_probe_is_wanted_on_gpus_but_for_capacities_that_are_given_and_several_nodes(
    monkeypatch: pytest.MonkeyPatch, more: str, wanted: bool
) -> None:
    """Of modes and of `probe.run`: `test_compare_probe.py`."""
    monkeypatch.setattr(training, "this_machine", lambda: Machine(cores=8, gpus=2, bf16=True))
    assert training.wants_probe(load_config(None, f"schedule.mode=dynamic {more}".split())) is wanted
