from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.errors import ConfigError, UsageError

WORKLOADS = (
    "MODULE:CLASS or FILE.py:CLASS of your own or text_classification, causal_lm, "
    "image_classification, mlp; a plug-in of your own: name its file "
    "in DYNBENCH_PLUGINS"
)


def write(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path | None = None, overrides: tuple[str, ...] = (), flags: Mapping[str, object] = {}) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, flags)
    return [problem.replace(f"{path}:", "c.yaml:") for problem in caught.value.problems]


def test_flags_win_over_set_over_file_over_defaults(tmp_path):
    path = write(tmp_path, "train: {steps: 1, seed: 1, global_batch: 8, warmup_steps: 1}\n")
    config = load_config(path, ["train.seed=2", "train.global_batch=16"], {"train.global_batch": "32"})
    assert (config.train.steps, config.train.seed, config.train.global_batch) == (1, 2, 32)
    assert config.train.learning_rate == Config().train.learning_rate


def test_set_reads_yaml_scalars():
    train = load_config(None, ["train.learning_rate=1", "train.weight_decay=1e-4", "train.steps = 7 "]).train
    assert (train.learning_rate, train.weight_decay, train.steps) == (1.0, 1e-4, 7)
    assert type(train.learning_rate) is float


def test_text_fields_keep_what_was_typed():
    config = load_config(
        None,
        ["workload.dataset=tsv", "workload.data_path=1e-4", "workload.tokenizer=no", "workload.text_column=007"],
        {"launch.rdzv_id": "123"},
    )
    workload = config.workload
    assert (workload.data_path, workload.tokenizer, workload.text_column) == ("1e-4", "no", "007")
    assert config.launch.rdzv_id == "123"


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("8,4", (8, 4)), ("[8, 4]", (8, 4)), ("[]", ()), ("@latest", "@latest"), ("null", None)],
)
def test_capacity_takes_a_number_a_list_or_a_run(text, value):
    assert load_config(None, [f"schedule.capacity={text}"]).schedule.capacity == value
    assert load_config(None, [], {"schedule.capacity": text}).schedule.capacity == value


def test_a_policy_alone_means_dynamic(tmp_path):
    assert load_config(None, [], {"schedule.policy": "prefix"}).schedule.mode == "dynamic"
    assert load_config(None, [], {"schedule.policy": "static"}).schedule.mode == "static"
    assert load_config(None, [], {"schedule.mode": "dynamic"}).schedule.policy_name == "partition"
    assert load_config().schedule.policy_name == "static"


def test_all_mistakes_of_all_layers_come_at_once(tmp_path):
    path = write(
        tmp_path,
        "train:\n  steps: 0\n  lernin: 3\n  steps: 5\nschedule:\n  mode: dynamc\n  capacity: -3\nlaunch: 5\n"
        "trian: {}\nlaunch.nproc: 3\nglobal_batch: 4\n",
    )
    found = problems(
        path,
        ("train.stps=3", "foo", "schedule.window=[", "schedule.solver=greddy"),
        {"train.global_batch": "abc", "nothing.like_it": 1},
    )
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
    missing = [text for text in expected if not any(problem.startswith(text) for problem in found)]
    assert missing == []
    assert len(found) == len(expected)


def test_a_repaired_value_is_no_mistake(tmp_path):
    path = write(tmp_path, "train:\n  steps: many\nlaunch: {slowdown: {0: 2}, nproc: 3}\n")
    config = load_config(path, ["train.steps=3", "launch.slowdown.1=3", "launch={nproc: 2}"])
    assert (config.train.steps, config.launch.slowdown, config.launch.nproc) == (3, {0: 2.0, 1: 3.0}, 2)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("train.steps", "1.5", "a whole number > 0"),
        ("train.learning_rate", ".nan", "a number > 0 or auto"),
        ("workload.dropout", "1", "a number >= 0 and < 1 or null"),
        ("workload.max_length", "1", "a whole number >= 2"),
        ("compress.error_feedback", "yes", "true or false or auto"),
        ("schedule.buffer", "none", "a whole number > 0 or auto"),
        ("schedule.cost_coefficients", "1,2", "a list of 3 numbers >= 0 or null"),
        ("schedule.speeds", "[1, 0]", "a list of numbers > 0, auto or null"),
        ("launch.slowdown", "1:0.5", "a mapping from a whole number >= 0 to a number >= 1"),
        ("workload.name", "vision", WORKLOADS),
    ],
)
def test_values_say_what_is_allowed(key, value, allowed):
    (found,) = problems(None, (f"{key}={value}",))
    assert found.startswith(f"--set {key}: ") and found.endswith(f"Allowed: {allowed}")


def test_rules_are_checked_and_located(tmp_path):
    path = write(tmp_path, "train:\n  global_batch: 50\nlaunch: {launcher: virtual, world_size: 4}\n")
    found = problems(path, ("workload.dataset=tsv",))
    assert len(found) == 2
    assert found[0].startswith("workload.data_path: ")
    assert found[1].startswith("c.yaml:2: train.global_batch: 50 cannot be dealt equally to 4 ranks")


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
        ("train:\n  steps: 3\n  epochs: 2\n", (), ["c.yaml:3: train.epochs: given beside train.steps"]),
    ],
)
def test_a_mistake_is_named_once_with_its_place(tmp_path, text, given, places):
    found = problems(write(tmp_path, text), given)
    assert [line[: len(place)] for line, place in zip(found, places, strict=True)] == places


def test_a_policy_that_says_a_layout_is_put_as_both(tmp_path):
    for config in (
        load_config(None, ["schedule.policy=packed"]),
        load_config(None, [], {"schedule.policy": "packed", "workload.layout": "packed"}),
        load_config(write(tmp_path, "schedule: {policy: packed}\nworkload:\n")),
    ):
        schedule, layout = config.schedule, config.workload.layout
        assert (schedule.policy, schedule.mode, layout) == ("partition", "dynamic", "packed")
    static = load_config(None, ["schedule.policy=static packed"])
    assert (static.schedule.policy_name, static.schedule.mode, static.workload.layout) == ("static", "static", "packed")
    assert load_config(None, ["schedule.policy=partition"]).workload.layout == "padded"
