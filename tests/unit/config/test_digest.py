from __future__ import annotations

from dynbench.config.digest import NOT_IDENTITY, config_digest, differences, flatten
from dynbench.config.layers import load_config
from dynbench.config.schema import Config


def test_flat_keys_are_dotted_and_complete() -> None:
    flat = flatten(load_config(None, ["schedule.capacity=8,4", "launch.slowdown=1:2"]))
    assert flat["schedule.capacity"] == [8, 4]
    assert flat["launch.slowdown"] == {"1": 2.0}
    assert set(NOT_IDENTITY) <= set(flat)


def test_differences_name_both_values() -> None:
    a, b = load_config(), load_config(None, ["train.steps=5", "schedule.mode=dynamic"])
    assert differences(a, b) == {"schedule.mode": ("static", "dynamic"), "train.steps": (100, 5)}
    assert differences(a, a) == {}


def test_digest_ignores_the_seed_and_nothing_of_substance() -> None:
    base = config_digest(Config())
    assert config_digest(load_config(None, ["train.seed=3"])) == base
    assert config_digest(load_config(None, ["train.seed=3"]), exclude=()) != config_digest(Config(), exclude=())
    assert config_digest(load_config(None, ["train.steps=3"])) != base
    assert config_digest(load_config(None, ["train.steps=3"]), exclude=("train",)) == config_digest(
        Config(), exclude=("train",)
    )


def test_digest_is_short_hex() -> None:
    digest = config_digest(Config())
    assert len(digest) == 16
    assert int(digest, 16) >= 0
