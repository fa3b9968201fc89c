"""Configurations: YAML as it is read, files and the command line laid over each other, and what mistakes say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from unit.config.conftest import refused

from dynbench.config import values
from dynbench.config.layers import load_config
from dynbench.config.schema import config_digest, value_of
from dynbench.config.yaml_strict import dump_yaml, parse_scalar, parse_yaml, read_yaml
from dynbench.errors import ConfigError, UsageError


def write(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path | None = None, overrides: tuple[str, ...] = (), flags: Mapping[str, object] = {}) -> list[str]:
    return [line.replace(f"{path}:", "c.yaml:") for line in refused(load_config, path, overrides, flags)]


CAPACITIES = {"8": 8, "8,4": (8, 4), "[8, 4]": (8, 4), "[]": (), "@latest": "@latest", "null": None}
TAKEN = {
    "train.learning_rate=1": 1.0,
    "train.weight_decay=1e-4": 1e-4,
    "train.steps = 7 ": 7,
    "workload.data_path=1e-4": "1e-4",
    "workload.tokenizer=no": "no",
    "workload.text_column=007": "007",
    "launch.rdzv_id=123": "123",
    **{f"schedule.capacity={text}": value for text, value in CAPACITIES.items()},
}
"""A setting, and what is taken for it."""
DECIDED = {
    "": "static static padded",
    "schedule.policy=prefix": "dynamic prefix padded",
    "schedule.policy=static": "static static padded",
    "schedule.mode=dynamic": "dynamic partition padded",
    "schedule.policy=packed": "dynamic partition packed",
    "schedule.policy=packed workload.layout=packed": "dynamic partition packed",
    "schedule.policy=static-packed": "static static packed",
}
"""Settings, and the mode, policy and layout that they mean."""


def test_the_command_line_is_laid_over_the_file(tmp_path):
    text = "train: {steps: many, seed: 1, global_batch: 8}\nworkload:\nlaunch: {slowdown: {0: 2}, nproc: 3}"
    overrides = ("train.steps=3", "train.seed=2", "train.global_batch=16", "launch.slowdown.1=3", "launch={nproc: 2}")
    config = load_config(write(tmp_path, text), overrides, {"train.global_batch": "32"})
    assert (config.train.steps, config.train.seed, config.train.global_batch) == (3, 2, 32)
    assert (config.launch.slowdown, config.launch.nproc) == ({0: 2.0, 1: 3.0}, 2)


@pytest.mark.parametrize("given", TAKEN)
def test_a_value_is_read_by_the_type_of_its_setting(given):
    key, _, text = given.partition("=")
    for overrides, flags in (([given], {}), ([], {key.strip(): text})):
        found = value_of(load_config(None, overrides, flags, rules=False), key.strip())
        assert (found, type(found)) == (TAKEN[given], type(TAKEN[given]))


@pytest.mark.parametrize("given", DECIDED)
def test_mode_policy_and_layout_decide_each_other(given):
    sets = [text.replace("-", " ") for text in given.split()]
    for overrides, flags in ((sets, {}), ([], dict(text.split("=") for text in sets))):
        config = load_config(None, overrides, flags)
        schedule = config.schedule
        assert f"{schedule.mode} {schedule.policy_name} {config.workload.layout}" == DECIDED[given]


def test_all_mistakes_of_all_layers_come_at_once(tmp_path):
    text = (
        "train:\n  steps: 0\n  lernin: 3\n  steps: 5\nschedule:\n  mode: dynamc\n  capacity: -3\nlaunch: 5\n"
        "trian: {}\nlaunch.nproc: 3\nglobal_batch: 4\n"
    )
    overrides = ("train.stps=3", "foo", "schedule.window=[", "schedule.solver=greddy")
    found = problems(write(tmp_path, text), overrides, {"train.global_batch": "abc", "nothing.like_it": 1})
    expected = [
        "c.yaml:4: train.steps: given twice, first in line 2; keep one",
        "--set foo: write it as key=value, like --set train.steps=200",
        "--set schedule.window: '[' is not a YAML value",
        "c.yaml:6: schedule.mode: 'dynamc' is not allowed. Did you mean 'dynamic'? Allowed: static, dynamic",
        "c.yaml:7: schedule.capacity: -3 is not allowed. Allowed: a whole number > 0, a list of whole numbers > 0",
        "--set schedule.solver: 'greddy' is not allowed. Did you mean 'greedy'? Allowed: exact, enumerate, greedy",
        "c.yaml:2: train.steps: 0 is not allowed. Allowed: a whole number > 0",
        "train.global_batch: 'abc' is not allowed. Allowed: a whole number > 0",
        "c.yaml:3: train.lernin: unknown key. Did you mean 'learning_rate'? Allowed: steps, epochs",
        "--set train.stps: unknown key. Did you mean 'steps'?",
        "c.yaml:8: launch: 5 is not a section; it holds the keys launcher, nproc",
        "c.yaml:9: trian: unknown key. Did you mean 'train'?",
        "c.yaml:10: launch.nproc: unknown key. Write a section as a line of its own",
        "c.yaml:11: global_batch: unknown key. Did you mean 'train.global_batch'?",
        "nothing: unknown key.",
    ]
    assert [text for text in expected if not any(problem.startswith(text) for problem in found)] == []
    assert len(found) == len(expected)


ALLOWED = {
    "workload.max_length=1": "a whole number >= 2",
    "workload.dropout=1": "a number >= 0 and < 1 or null",
    "compress.error_feedback=yes": "true or false or auto",
    "schedule.cost_coefficients=1,2": "a list of 3 numbers >= 0 or null",
    "schedule.speeds=[1, 0]": "a list of numbers > 0, auto or null",
    "launch.slowdown=1:0.5": "a mapping from a whole number >= 0 to a number >= 1",
}


@pytest.mark.parametrize("given", ALLOWED)
def test_values_say_what_is_allowed(given):
    (found,) = problems(None, (given,))
    assert found.startswith(f"--set {given.partition('=')[0]}: ") and found.endswith(f"Allowed: {ALLOWED[given]}")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"c\.yaml: cannot be read"):
        load_config(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("text", "given", "places"),
    [
        ("launch: 5\n", ("launch.nproc=2",), ["c.yaml:1: launch: 5 cannot hold launch.nproc"]),
        ("train:\n  steps: 5\n", ("train.steps.x=2",), ["c.yaml:2: train.steps", "--set train.steps"]),
        (
            "train: &t\n  steps: *t\n  seed: !!set {1: null}\n  global_batch: 0\n",
            (),
            ["c.yaml:2: train.steps", "c.yaml:3: train.seed", "c.yaml:4: train.global_batch"],
        ),
        ("schedule: {policy: packed}\nworkload:\n  layout: padded\n", (), ["c.yaml:3: workload.layout: 'padded' with"]),
        (
            "train:\n  global_batch: 50\nlaunch: {launcher: virtual, world_size: 4}\n",
            ("workload.dataset=tsv",),
            ["workload.data_path: ", "c.yaml:2: train.global_batch: 50 cannot be dealt equally to 4 ranks"],
        ),
        ("train:\n  steps: 3\n  epochs: 2\n", (), ["c.yaml:3: train.epochs: given beside train.steps"]),
    ],
)
def test_a_mistake_is_named_once_with_its_place(tmp_path, text, given, places):
    found = problems(write(tmp_path, text), given)
    assert [line[: len(place)] for line, place in zip(found, places, strict=True)] == places


def test_digest_ignores_the_seed_and_nothing_of_substance():
    base, seed, steps = (load_config(None, given) for given in ([], ["train.seed=3"], ["train.steps=3"]))
    assert config_digest(seed) == config_digest(base) != config_digest(steps)
    assert config_digest(seed, exclude=()) != config_digest(base, exclude=())
    assert config_digest(steps, exclude=("train",)) == config_digest(base, exclude=("train",))


def test_every_field_is_described_in_words_and_in_the_schema():
    assert len(values.all_keys()) > 50
    for key in values.all_keys():
        info, below = values.field_of(key) or (None, None)
        assert info is not None and info.description and below == ()
        assert not any(sign in values.describe(info) for sign in ("<class", "typing", "Annotated")), key


SCALARS = {
    "1e-4": 1e-4,
    ".5": 0.5,
    "-.5e+1": -5.0,
    "no": "no",
    "true": True,
    "tRUE": "tRUE",
    "3:30": "3:30",
    "012": 12,
    "0o17": 15,
    "1_000": "1_000",
    "2026-11-20": "2026-11-20",
    "~": None,
    "'12'": "12",
    "[1, a, [2.0]]": [1, "a", [2.0]],
    "{1: 2.5, a: ~}": {1: 2.5, "a": None},
    "=": "=",
}


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_follow_yaml_1_2(text):
    for line in (text, f"{text} #{'x' * 5_000}"):  # what may nest deeply is read by another loader
        seen = parse_scalar(line, "here")
        assert (seen, type(seen)) == (SCALARS[text], type(SCALARS[text]))
    assert parse_yaml(dump_yaml({"key": text}), "f.yaml").mapping == {"key": text}, "a text stays one"


def test_duplicate_keys_at_all_depths_are_all_reported():
    with pytest.raises(ConfigError) as caught:
        parse_yaml("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", "f.yaml")
    assert caught.value.problems == (
        "f.yaml:4: b.c: given twice, first in line 3; keep one",
        "f.yaml:5: a: given twice, first in line 1; keep one",
    )


MISTAKES = {
    "a: [1": "f.yaml:1: not valid YAML: while parsing a flow sequence, expected ',' or ']'",
    "a: 1\nb: c: d": "f.yaml:2: not valid YAML: mapping values are not allowed here",
    "a: 1\n\tb: 2": "f.yaml:2: not valid YAML: while scanning for the next token, found character '\\t'",
    "a: @latest": "f.yaml:1: not valid YAML: while scanning for the next token, found character '@' that cannot",
    "a: 1\n---\nb: 2": "f.yaml:2: not valid YAML: expected a single document in the stream",
    "a: *nobody": "f.yaml:1: not valid YAML: found undefined alias 'nobody'",
    "a: !!python/name:os.system x": "f.yaml:1: a: the tag !!python/name:os.system is not supported",
    "a: !!set {b: null}": "f.yaml:1: a: the tag !!set is not supported",
    "a: [!!pairs [b: 1]]": "f.yaml:1: a.0: the tag !!pairs is not supported",
    "a: 1\n? [1, 2]\n: 3": "f.yaml:2: top level: a key must be text or a whole number, not a list or mapping",
    "true: 3": "f.yaml:1: top level: a key must be text or a whole number, not 'true'; quote it",
    "- a": "f.yaml:1: expected `key: value` lines at the top level",
    "a: b\nc: \0": "f.yaml:2: not valid YAML: unacceptable character",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_carry_file_and_line(text):
    (problem,) = read_yaml(text, "f.yaml").problems
    assert problem.startswith(MISTAKES[text]) and "\n" not in problem


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@drawn(st.dictionaries(texts, plain, max_size=4))
def test_what_is_dumped_is_read_back(mapping):
    assert parse_yaml(dump_yaml(mapping), "f.yaml").mapping == mapping


@drawn(st.text())
def test_any_text_gives_a_document_or_problems(text):
    document = read_yaml(text, "f.yaml")
    assert isinstance(document.mapping, dict)
    assert all(problem.startswith("f.yaml") and "\n" not in problem for problem in document.problems)


@pytest.mark.slow
def test_nesting_without_end_is_a_mistake_and_ends_nothing():
    for text in ("a: " + "[" * 5000, "- " * 5000 + "a", "a: " + "{b: " * 5000 + "}" * 5000):
        assert read_yaml(text, "f.yaml").problems == ["f.yaml:1: nested too deeply to be read"]
        with pytest.raises(ConfigError, match="key: nested too deeply to be read"):
            parse_scalar(text, "key")
