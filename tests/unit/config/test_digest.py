from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynbench.config import values
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, Launch, Schedule, Train, Workload, config_digest, differences, dump_config


def test_differences_name_both_values():
    a, b = load_config(), load_config(None, ["train.steps=5", "schedule.mode=dynamic"])
    assert differences(a, b) == {"schedule.mode": ("static", "dynamic"), "train.steps": (100, 5)}
    assert differences(a, a) == {}


def test_digest_ignores_the_seed_and_nothing_of_substance():
    base = config_digest(Config())
    assert config_digest(load_config(None, ["train.seed=3"])) == base
    assert config_digest(load_config(None, ["train.seed=3"]), exclude=()) != config_digest(Config(), exclude=())
    assert config_digest(load_config(None, ["train.steps=3"])) != base
    assert config_digest(load_config(None, ["train.steps=3"]), exclude=("train",)) == config_digest(
        Config(), exclude=("train",)
    )


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
tricky = st.sampled_from(["1e-4", "no", "012", "3:30", "null", "~", "", "true", " x ", "#", "a: b", "[1", "@latest"])
configs = st.builds(
    Config,
    workload=st.builds(
        Workload,
        dataset=st.just("tsv"),
        data_path=texts | tricky,
        tokenizer=st.none() | texts | tricky,
        dropout=st.none() | st.floats(0, 0.99),
    ),
    schedule=st.builds(
        Schedule,
        capacity=st.none() | st.integers(1, 2**31 - 1) | st.lists(st.integers(1, 99), max_size=4).map(tuple) | tricky,
        buffer=st.just("auto") | st.integers(64, 10**6),
    ),
    train=st.builds(Train, learning_rate=st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False)),
    launch=st.builds(Launch, slowdown=st.dictionaries(st.integers(0, 99), st.floats(1, 100), max_size=3)),
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(configs)
def test_what_is_written_loads_to_the_same(tmp_path, config):
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8", newline="")
    assert load_config(path) == config


def test_every_field_is_described_in_words_and_in_the_schema():
    assert len(values.all_keys()) > 50
    for key in values.all_keys():
        info, below = values.field_of(key) or (None, None)
        assert info is not None and info.description and below == ()
        assert not any(sign in values.describe(info) for sign in ("<class", "typing", "Annotated")), key
