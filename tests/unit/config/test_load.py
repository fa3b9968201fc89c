from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dynbench.config.layers import load_config
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


PACKED = {"schedule.policy": "partition", "schedule.mode": "dynamic", "workload.layout": "packed"}
CAPACITIES = {"8": 8, "8,4": (8, 4), "[8, 4]": (8, 4), "[]": (), "@latest": "@latest", "null": None}
TAKEN: list[tuple[str, Sequence[str], dict[str, object], dict[str, object]]] = [
    (
        "train: {steps: 1, seed: 1, global_batch: 8}",
        ["train.seed=2", "train.global_batch=16"],
        {"train.global_batch": "32"},
        {"train.steps": 1, "train.seed": 2, "train.global_batch": 32},
    ),
    (
        "",
        ["train.learning_rate=1", "train.weight_decay=1e-4", "train.steps = 7 "],
        {},
        {"train.learning_rate": 1.0, "train.weight_decay": 1e-4, "train.steps": 7},
    ),
    (
        "",
        ["workload.dataset=tsv", "workload.data_path=1e-4", "workload.tokenizer=no", "workload.text_column=007"],
        {},
        {"workload.data_path": "1e-4", "workload.tokenizer": "no", "workload.text_column": "007"},
    ),
    ("", [], {"launch.rdzv_id": "123"}, {"launch.rdzv_id": "123"}),
    (
        "train: {steps: many}\nlaunch: {slowdown: {0: 2}, nproc: 3}",
        ["train.steps=3", "launch.slowdown.1=3", "launch={nproc: 2}"],
        {},
        {"train.steps": 3, "launch.slowdown": {0: 2.0, 1: 3.0}, "launch.nproc": 2},
    ),
    ("", [], {"schedule.policy": "prefix"}, {"schedule.mode": "dynamic"}),
    ("", [], {"schedule.policy": "static"}, {"schedule.mode": "static"}),
    ("", [], {"schedule.mode": "dynamic"}, {"schedule.policy_name": "partition"}),
    ("", [], {}, {"schedule.policy_name": "static", "workload.layout": "padded"}),
    ("", ["schedule.policy=partition"], {}, {"schedule.policy": "partition", "workload.layout": "padded"}),
    ("", ["schedule.policy=packed"], {}, PACKED),
    ("", [], {"schedule.policy": "packed", "workload.layout": "packed"}, PACKED),
    ("schedule: {policy: packed}\nworkload:", [], {}, PACKED),
    ("", ["schedule.policy=static packed"], {}, {"schedule.policy_name": "static", "workload.layout": "packed"}),
    *(("", [f"schedule.capacity={text}"], {}, {"schedule.capacity": value}) for text, value in CAPACITIES.items()),
    *(("", [], {"schedule.capacity": text}, {"schedule.capacity": value}) for text, value in CAPACITIES.items()),
]


@pytest.mark.parametrize(("text", "overrides", "flags", "expected"), TAKEN)
def test_what_is_given_is_taken(tmp_path, text, overrides, flags, expected):
    config = load_config(write(tmp_path, text), overrides, flags)
    for key, value in expected.items():
        section, _, name = key.partition(".")
        found = getattr(getattr(config, section), name)
        assert (found, type(found)) == (value, type(value)), key


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
