"""A setting that was changed and is not read is named once: options of plug-ins that are not chosen, and some more."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from dynbench.config.layers import load_config
from dynbench.config.rules import makes_probe
from dynbench.config.schema import Config, changed
from dynbench.config.unread import INSTEAD, Command, Use, readings, unread
from dynbench.config.values import all_keys
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS

OWN, TEXTS = "workload.name=mine:Workload", "workload.dataset=sst2"
DYNAMIC, PREFIX = "schedule.mode=dynamic", "schedule.policy=prefix"
VIRTUAL, REAL = "launch.launcher=virtual", "launch.launcher=torchrun"
PROBE = "probe.run=auto"
UNREAD_AND_READ: dict[str, tuple[object, tuple[str, ...], tuple[str, ...]]] = {
    "workload.model": ("bert-base-uncased", (TEXTS, "workload.tokenizer=vocab.txt"), (TEXTS,)),
    "workload.size": ("base", ("workload.weights=pretrained",), ()),
    "schedule.cost_type": ("attention", ("schedule.policy=token_budget",), (DYNAMIC,)),
    "schedule.cost_coefficients": ((1.0, 1.0, 0.0), (DYNAMIC, "schedule.cost_type=tokens"), (DYNAMIC,)),
    "schedule.capacity": (40, ("schedule.policy=lpt",), ()),
    "schedule.speeds": ((1.0, 0.5), ("schedule.policy=group_by_length",), ("schedule.policy=sorted_equal",)),
    "schedule.replan_steps": (4, (DYNAMIC,), (DYNAMIC, "schedule.speeds=auto")),
    "launch.nproc": (8, (VIRTUAL,), (REAL,)),
    "launch.world_size": (8, (REAL,), (VIRTUAL,)),
    "launch.comm_model": ("none", (REAL,), (VIRTUAL,)),
    "probe.lengths": ((32, 64), (), (PROBE,)),
    "probe.memory_fraction": (0.5, ("probe.run=off",), (PROBE,)),
    "probe.memory_limit": ("1GB", (), ("probe.run=earlier",)),
    "probe.margin": (0.2, (), (PROBE,)),
    "probe.gap": (0.2, (), (PROBE,)),
    "probe.trials": (5, (), (PROBE,)),
    "probe.repeats": (7, (), (PROBE,)),
    "probe.soak_steps": (3, (), (PROBE,)),
}  # fmt: skip
"""A value of each setting that misleads, a configuration in which no training reads it, and one in which it does."""
OPTIONS = {
    f"{registry.section}.{option}": registry
    for registry in (WORKLOADS, DATASETS, POLICIES, STRATEGIES, COMPRESSORS)
    for option in registry.options()
}


def use(config: Config, **facts: Any) -> Use:
    """As the engine makes it, where everything is decided that the configuration decides."""
    ranks = (config.launch.world_size or 4) if config.launch.launcher == "virtual" else 2
    return Use(config, config, **{"world_size": ranks, "probes": makes_probe(config, on_gpus=False), **facts})


def named(config: Config, command: Command = "train", **facts: Any) -> list[str]:
    """The settings that are named."""
    return [line.partition(":")[0] for line in unread(command, [use(config, **facts)])]


def test_every_setting_that_misleads_is_tried():
    assert list(readings(use(Config()))) == list(UNREAD_AND_READ)
    assert set(UNREAD_AND_READ) | set(INSTEAD) <= set(all_keys())


@pytest.mark.parametrize("command", get_args(Command))
def test_defaults_warn_of_nothing(command):
    assert unread(command, [use(Config())]) == []


@pytest.mark.parametrize("key", UNREAD_AND_READ)
def test_a_value_is_named_where_it_is_not_read_and_only_there(key):
    value, without_effect, in_use = UNREAD_AND_READ[key]
    (warning,) = unread("train", [use(changed(load_config(None, without_effect), {key: value}))])
    assert warning.startswith(f"{key}: {value!r} has no effect: ") and "{" not in warning
    assert named(changed(load_config(None, in_use), {key: value})) == []


@pytest.mark.parametrize("key", OPTIONS)
def test_an_option_is_named_where_no_chosen_plugin_has_it(key):
    registry, option = OPTIONS[key], key.partition(".")[2]
    chosen = load_config(None, [REAL, DYNAMIC])
    assert registry.readers(option) or option in registry.shared.model_fields
    for name, entry in registry.items():
        config = changed(chosen, {registry.key: name, key: "another"})
        lines = [line for line in unread("train", [use(config)]) if line.startswith(f"{key}: ")]
        assert len(lines) == (not entry.reads(option)), name
        assert all(f"{registry.kind} '{name}' does not read it" in line for line in lines)


@pytest.mark.parametrize("key", [key for key in OPTIONS if key.startswith("sync.")])
def test_virtual_ranks_read_no_option_of_a_strategy(key):
    (line,) = unread("train", [use(changed(load_config(None, [VIRTUAL]), {key: "another"}))])
    assert "strategy 'ddp' of virtual ranks, which send no gradients, does not read it" in line


def test_a_probe_and_an_offline_plan_name_what_they_look_at():
    given = ("compress.ratio=0.1", "schedule.buffer=9", "schedule.cost_type=attention", "train.eval_samples=0")
    config = load_config(None, [*given, "train.eval_every=3", "train.momentum=0.5"])
    assert named(config, "probe") == ["compress.ratio"]
    assert named(config, "solve", policies=("static",)) == ["schedule.buffer", "schedule.cost_type"]
    assert named(config, "solve", policies=("static", "prefix")) == []


@pytest.mark.parametrize("key", [key for key in all_keys() if key.startswith("workload.") and key != "workload.name"])
def test_code_of_ones_own_may_read_every_setting_of_its_section(key):
    assert named(changed(load_config(None, [OWN]), {key: "another"})) == []


def test_settings_that_solve_has_options_for_are_one_line_that_names_them():
    config = load_config(None, ["train.steps=5", "launch.nproc=3", "schedule.policy=prefix"])
    (line,) = unread("solve", [use(config, policies=("static",))])
    said = "schedule.policy (--policy), train.steps (--steps): no effect on `dynbench solve`, which does not read this"
    assert line == said


def test_arms_share_what_one_of_them_reads():
    def arm(*overrides: str) -> Use:
        return use(load_config(None, overrides))

    shared = arm("schedule.window=16"), arm("schedule.policy=partition", "schedule.window=16")
    (warning,) = unread("train", shared)
    assert warning.startswith("schedule.window: 16 has no effect: policy 'static, partition'")
    assert unread("train", [*shared, arm("schedule.policy=window", "schedule.window=16")]) == []
    own = arm("schedule.policy=partition", "schedule.window=4"), arm("schedule.policy=window", "schedule.window=8")
    (line,) = unread("train", own)
    assert line.startswith("schedule.window: 4 has no effect")
