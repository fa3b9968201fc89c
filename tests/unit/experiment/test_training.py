"""What comes before a training, what trains in turns with it without communication, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.config.layers import load_config
from dynbench.config.recipes import Launches
from dynbench.config.schema import Config, differences, is_like
from dynbench.engine.launching import run_launch as attach
from dynbench.engine.launching.resolve import Machine
from dynbench.errors import ConfigError, UsageError
from dynbench.experiment import launch_plan, training
from dynbench.experiment.launch_plan import decide_grouping
from dynbench.experiment.training import exposed_turns, run_training, turn_steps, with_null_arms
from dynbench.plugins import STRATEGIES
from dynbench.runs.store import RunStore

REAL = (
    "launch.launcher=torchrun",
    "launch.nproc=2",
    "launch.device=cpu",
    "workload.subset=96",
    "train.global_batch=12",
    "train.exposed=true",
)


def real(*settings: str) -> Config:
    return load_config(None, [*REAL, *settings])


@pytest.mark.parametrize("sync", STRATEGIES)
def test_every_strategy_has_a_like_that_sends_nothing_or_says_why_not(tmp_path: Path, sync: str) -> None:
    entry = STRATEGIES[sync]
    if entry.servers or not entry.trains:
        with pytest.raises(ConfigError, match=r"train\.exposed: true, but .*(server steps by|sends nothing already)"):
            real(f"sync.name={sync}")
        return
    config = real(f"sync.name={sync}", "train.save_model=true", "train.eval_samples=64")
    one, null = with_null_arms([("with", config, {"name": "a", "replace": True})])
    assert set(differences(one.config, null.config)) == {"sync.communicate", "train.save_model", "train.exposed"}
    assert is_like(null.config, config) and not is_like(config, null.config) and not is_like(config, config)
    assert (one.naming["name"], null.naming["name"], null.naming["replace"]) == ("a", "a-null", True)
    turns = exposed_turns(config, RunStore(tmp_path))
    assert turns.arms == (one.name, null.name) and turns.block == (
        8 if entry.across_steps or entry.reads("inner_steps") else 1
    )


def test_ranks_that_step_apart_take_turns_of_as_many_steps(tmp_path: Path) -> None:
    config = real("sync.name=diloco", "sync.inner_steps=20", "sync.overlap_steps=2")
    assert exposed_turns(config, RunStore(tmp_path)).block == 20
    assert turn_steps(Launches(), [config]) == 20 and turn_steps(Launches(block=32), [config]) == 32
    assert turn_steps(Launches(), [config, config]) == 1, "checked where arms meet"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("launch.launcher=virtual",), "virtual ranks send nothing"),
        (("sync.communicate=false",), "sync.communicate false sends nothing already"),
        (("train.profile_steps=2",), "a profiler"),
    ],
)
def test_what_there_is_not_to_leave_out_is_refused(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        real(*settings)


def test_what_cannot_take_turns_is_refused_also_where_arms_are_apart(tmp_path: Path) -> None:
    config = real("train.eval_every=2")
    for mode in ("apart", "auto"):
        with pytest.raises(ConfigError, match=r"train\.exposed: true, but train\.eval_every of arm a is 2 steps"):
            decide_grouping(Launches(mode=mode), {"a": config, "b": real()}, "b")
    with pytest.raises(ConfigError, match=r"train\.exposed: true, but train\.eval_every"):
        exposed_turns(config, RunStore(tmp_path))


def test_only_exposed_arms_have_a_null_arm_and_each_is_known_by_its_arm() -> None:
    plain = load_config(None, [one for one in REAL if "exposed" not in one])
    arms = with_null_arms([("ps", plain, {"name": "ps-1"}), ("flat", real("sync.name=flat"), {"name": "flat-1"})])
    assert [(one.name, one.member, one.is_null, one.naming["name"]) for one in arms] == [
        ("ps", 0, False, "ps-1"),
        ("flat", 1, False, "flat-1"),
        ("flat-null", 1, True, "flat-1-null"),
    ]
    assert [one.config.sync.communicate for one in arms] == [True, True, False]


def test_likes_count_among_the_arms_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan, "MOST_ARMS", 5)
    arms = {name: real(f"sync.name={name}") for name in ("ddp", "naive", "flat")}
    found = decide_grouping(Launches(), arms, "ddp")
    assert found.groups == (("ddp", "naive"), ("ddp", "flat"))
    assert "3 arms and 3 without communication are more than 5" in found.reason


def test_a_rank_that_torchrun_started_launches_no_two_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "started_as_rank", lambda _: True)
    monkeypatch.setattr(attach, "join_training", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(UsageError, match=r"train\.exposed: true launches two arms"):
        run_training(real(), RunStore(tmp_path))


TWO_NODES = ("launch.nnodes=2", "launch.rdzv_endpoint=a:1")


@pytest.mark.parametrize(
    ("overrides", "gpus", "wanted"),
    [
        (("schedule.mode=dynamic",), 2, True),
        (("schedule.mode=dynamic",), 0, False),
        (("schedule.mode=static",), 2, False),
        (("schedule.mode=dynamic", "schedule.capacity=8"), 2, False),
        (("schedule.mode=dynamic", "launch.device=cpu"), 2, False),
        (("schedule.mode=dynamic", *TWO_NODES), 2, False),
        (("schedule.mode=static", "probe.run=auto"), 0, True),
        (("schedule.mode=dynamic", "probe.run=p1"), 2, False),
    ],
)
def test_wanted(monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], gpus: int, wanted: bool) -> None:
    monkeypatch.setattr(training, "this_machine", lambda: Machine(cores=8, gpus=gpus, bf16=True))
    assert training.wants_probe(load_config(None, overrides)) is wanted
