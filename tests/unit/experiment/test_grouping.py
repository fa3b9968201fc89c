"""Which arms share a launch: all that can, pairs, or none; and why."""

from __future__ import annotations

import pytest

from dynbench.config.digest import changed
from dynbench.config.launches import Launches
from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.errors import ConfigError
from dynbench.experiment import launch_plan
from dynbench.experiment.launch_plan import decide_grouping
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


def test_code_of_two_places_is_not_imported_into_one_process() -> None:
    own = arms(a=("workload.name=one.py:Mine",), b=("workload.name=two.py:Mine",))
    assert "workload.name is " in decide_grouping(Launches(), own, "a").reason
    same = {name: config for name, config in arms(a=("workload.name=one.py:Mine",)).items() if name != "static"}
    both = same | {"b": next(iter(same.values()))}
    assert decide_grouping(Launches(), both, "a").mode == "interleaved"


def test_apart_when_asked() -> None:
    found = decide_grouping(Launches(mode="apart"), arms(part=PARTITION), "static")
    assert (found.mode, found.reason) == ("apart", "launches.mode is apart")


def test_many_arms_meet_the_baseline_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan, "MOST_TOGETHER", 2)
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


def test_images_are_not_decoded_in_the_turn_of_another_arm() -> None:
    images = arms(a=("workload.name=image_classification", "workload.workers=2"), b=("workload.name=mlp",))
    two = {name: images[name] for name in ("a", "b")}
    found = decide_grouping(Launches(), two, "b")
    assert found.mode == "apart" and "workload.workers of arm a is 2" in found.reason
    with pytest.raises(ConfigError, match=r"workload\.workers of arm a is 2"):
        decide_grouping(Launches(mode="interleaved"), two, "b")
    within = {name: changed(config, {"workload.workers": 0}) for name, config in two.items()}
    assert decide_grouping(Launches(), within, "b").mode == "interleaved"


@pytest.mark.parametrize(("steps", "mode"), [(6, "apart"), (10, "interleaved")])
def test_short_epochs_leave_too_little_between_evaluations(steps: int, mode: str) -> None:
    short = {
        name: changed(config, {"train.epochs": 2, "train.steps": steps, "train.warmup_steps": 0})
        for name, config in arms(part=PARTITION).items()
    }
    found = decide_grouping(Launches(), short, "static")
    assert found.mode == mode
    assert ("an epoch of arm static is 3 steps" in found.reason) == (mode == "apart")


def test_a_profiled_arm_goes_apart() -> None:
    two = arms(part=(*PARTITION, "train.profile_steps=2"))
    found = decide_grouping(Launches(), two, "static")
    assert found.mode == "apart" and "train.profile_steps of arm part is 2" in found.reason
    with pytest.raises(ConfigError, match=r"train\.profile_steps of arm part"):
        decide_grouping(Launches(mode="interleaved"), two, "static")


def test_an_odd_number_of_launches_is_refused_only_where_arms_go_apart() -> None:
    three, shared = Launches(count=3), arms(part=PARTITION)
    assert decide_grouping(three, shared, "static").mode == "interleaved"
    profiled = arms(part=(*PARTITION, "train.profile_steps=2"))
    with pytest.raises(ConfigError, match=r"launches\.count: 3 launches per arm") as refused:
        decide_grouping(three, profiled, "static")
    assert "train.profile_steps of arm part" in refused.value.hint
    assert decide_grouping(Launches(count=4), profiled, "static").mode == "apart"
