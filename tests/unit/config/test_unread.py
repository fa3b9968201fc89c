"""A setting that was changed and is not read is named once: options of plug-ins that are not chosen, and some more."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from dynbench.config.layers import load_config
from dynbench.config.rules import makes_probe
from dynbench.config.schema import Config, changed
from dynbench.config.unread import INSTEAD, Command, Use, readings, unread
from dynbench.config.values import all_keys
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS

OWN, TEXTS = "workload.name=mine:Workload", "workload.dataset=sst2"
DYNAMIC = "schedule.mode=dynamic"
VIRTUAL, REAL = "launch.launcher=virtual", "launch.launcher=torchrun"
PARTITION, WINDOW, PROBE = "schedule.policy=partition", "schedule.policy=window", "probe.run=auto"
UNREAD_AND_READ = {
    "workload.model=bert-base-uncased": (f"{TEXTS} workload.tokenizer=vocab.txt", TEXTS),
    "workload.size=base": ("workload.weights=pretrained", ""),
    "schedule.cost_type=attention": ("schedule.policy=token_budget", DYNAMIC),
    "schedule.cost_coefficients=[1.0,1.0,0.0]": (f"{DYNAMIC} schedule.cost_type=tokens", DYNAMIC),
    "schedule.capacity=40": ("schedule.policy=lpt", ""),
    "schedule.speeds=[1.0,0.5]": ("schedule.policy=group_by_length", "schedule.policy=sorted_equal"),
    "schedule.replan_steps=4": (DYNAMIC, f"{DYNAMIC} schedule.speeds=auto"),
    "launch.nproc=8": (VIRTUAL, REAL),
    "launch.world_size=8": (REAL, VIRTUAL),
    "launch.comm_model=none": (REAL, VIRTUAL),
    "probe.lengths=[32,64]": ("", PROBE),
    "probe.memory_fraction=0.5": ("probe.run=off", PROBE),
    "probe.memory_limit=1GB": ("", "probe.run=earlier"),
    **{f"probe.{each}": ("", PROBE) for each in ("margin=0.2", "gap=0.2", "trials=5", "repeats=7", "soak_steps=3")},
}
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


def lines_of(settings: str, command: Command = "train", **facts: Any) -> list[str]:
    """What is named of settings."""
    return unread(command, [use(load_config(None, settings.split(), rules=False), **facts)])


def named(settings: str, command: Command = "train", **facts: Any) -> list[str]:
    """The settings that are named."""
    return [line.partition(":")[0] for line in lines_of(settings, command, **facts)]


def test_every_setting_that_misleads_is_tried():
    tried = {setting.partition("=")[0] for setting in UNREAD_AND_READ}
    assert {*readings(use(Config()))} == tried and tried | {*INSTEAD} <= {*all_keys()}


@pytest.mark.parametrize("command", get_args(Command))
def test_defaults_warn_of_nothing(command):
    assert unread(command, [use(Config())]) == []


@pytest.mark.parametrize("setting", UNREAD_AND_READ)
def test_a_value_is_named_where_it_is_not_read_and_only_there(setting):
    without_effect, in_use = UNREAD_AND_READ[setting]
    (warning,) = lines_of(f"{without_effect} {setting}")
    assert re.match(rf"{setting.partition('=')[0]}: [('\d].* has no effect: ", warning) and "{" not in warning
    assert lines_of(f"{in_use} {setting}") == []


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


def test_virtual_ranks_read_no_option_of_a_strategy():
    for key in (key for key in OPTIONS if key.startswith("sync.")):
        (line,) = unread("train", [use(changed(load_config(None, [VIRTUAL]), {key: "another"}))])
        assert "strategy 'ddp' of virtual ranks" in line


def test_a_probe_and_an_offline_plan_name_what_they_look_at():
    given = "compress.ratio=0.1 schedule.buffer=9 schedule.cost_type=attention train.eval_samples=0 train.eval_every=3"
    assert named(given, "probe") == ["compress.ratio"]
    assert named(given, "solve", policies=("static",)) == ["schedule.buffer", "schedule.cost_type"]
    assert named(given, "solve", policies=("static", "prefix")) == []


def test_code_of_ones_own_may_read_every_setting_of_its_section():
    for key in (key for key in all_keys() if key.startswith("workload.") and key != "workload.name"):
        assert unread("train", [use(changed(load_config(None, [OWN]), {key: "another"}))]) == [], key


def test_settings_that_solve_has_options_for_are_one_line_that_names_them():
    given = "train.steps=5 launch.nproc=3 schedule.policy=prefix"
    assert named(given, "solve", policies=("static",)) == ["schedule.policy (--policy), train.steps (--steps)"]


def test_arms_share_what_one_of_them_reads():
    def warned(*arms: str) -> list[str]:
        found = unread("train", [use(load_config(None, arm.split())) for arm in arms])
        return [line.partition(" has no effect")[0] for line in found]

    default, dynamic, window = (f"{policy} schedule.window=16" for policy in ("", PARTITION, WINDOW))
    assert warned(default, dynamic) == ["schedule.window: 16"]
    assert warned(default, dynamic, window) == []
    assert warned(f"{PARTITION} schedule.window=4", f"{WINDOW} schedule.window=8") == ["schedule.window: 4"]
