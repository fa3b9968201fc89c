"""What cannot work of a strategy is refused in one line before ranks start, and what is not read is named."""

from __future__ import annotations

import itertools

import pytest

from dynbench.config.image_rules import image_warnings
from dynbench.config.layers import load_config
from dynbench.config.rules import check_rules, rule_warnings
from dynbench.errors import ConfigError
from dynbench.plugins import STRATEGIES

NAMES = list(STRATEGIES)
OTHER_VALUES = {
    "bucket_mb": "7", "find_unused": "true", "inner_steps": "3", "outer_rate": "0.5", "outer_momentum": "0.5",
    "fragments": "3", "overlap_steps": "1", "own_share": "0.25",
    "reduce_scatter": "native", "reshard": "false", "gather_bf16": "true",
}  # fmt: skip
"""Of every option, one that is not the default."""
NUMBERS = [
    (name, option)
    for name, entry in STRATEGIES.items()
    for option in ("bucket_mb", "inner_steps", "fragments", "outer_rate")
    if entry.reads(option)
]


def refused(*settings: str) -> str:
    """The one line that they are refused with."""
    with pytest.raises(ConfigError) as ended:
        load_config(None, list(settings))
    (line,) = ended.value.problems
    return line


@pytest.mark.parametrize(("name", "option"), NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", ".nan", "nan", ".inf", "many", "[1]", "null"])
def test_sizes_and_numbers_are_above_zero(name: str, option: str, value: str) -> None:
    line = refused(f"sync.name={name}", f"sync.{option}={value}")
    assert f"sync.{option}" in line
    assert "\n" not in line


@pytest.mark.parametrize("name", [name for name in NAMES if STRATEGIES[name].servers])
def test_servers_need_a_rank_that_trains(name: str) -> None:
    config, servers = load_config(None, [f"sync.name={name}"]), STRATEGIES[name].servers
    for ranks in range(1, servers + 1):
        (problem,) = check_rules(config, ranks)
        assert problem.startswith(f"sync.name: '{name}' has {servers} of {ranks} ranks serve")
        assert problem.endswith(f"least number of ranks that works: {servers + 1}")
    assert check_rules(config, servers + 1) == []


@pytest.mark.parametrize("name", [name for name in NAMES if not STRATEGIES[name].virtual])
def test_virtual_ranks_play_no_strategy_that_sends(name: str) -> None:
    line = refused(f"sync.name={name}", "launch.launcher=virtual")
    assert f"sync.name: '{name}' needs real ranks" in line
    assert "set it to ddp" in line


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name, option in itertools.product(NAMES, OTHER_VALUES) if not STRATEGIES[name].reads(option)],
)
def test_options_of_other_strategies_are_named(name: str, option: str) -> None:
    config = load_config(None, [f"sync.name={name}", f"sync.{option}={OTHER_VALUES[option]}"])
    (line,) = [line for line in rule_warnings(config, 2 + STRATEGIES[name].servers) if f"sync.{option}:" in line]
    assert "has no effect" in line and name in line


@pytest.mark.parametrize("name", NAMES)
def test_batch_norm_over_unequal_numbers_is_warned_of(name: str) -> None:
    images = [f"sync.name={name}", "workload.name=image_classification"]
    (line,) = image_warnings(load_config(None, [*images, "schedule.policy=partition"]))
    assert "batch norm" in line and "'partition'" in line and "set schedule.policy to static" in line
    assert image_warnings(load_config(None, images)) == []
