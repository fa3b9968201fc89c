"""Recipes: the shipped ones, files and command lines, which say the same; and what a mistake says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from recipe_files import load_cells
from unit.config.conftest import refused

from dynbench.cli.common import FLAGS
from dynbench.cli.main import main
from dynbench.config.part_rules import whole_window_steps
from dynbench.config.recipe_file import recipe_yaml, sweep_document, written_recipe
from dynbench.config.recipes import (
    Launches,
    Recipe,
    dump_recipe,
    find_recipe,
    list_recipes,
    load_recipe,
    recipes_dir,
    resolve_cells,
)
from dynbench.config.values import read_settings, read_values, short_keys
from dynbench.config.yaml_strict import Document
from dynbench.errors import UsageError

SHIPPED = list(list_recipes())

GOOD = """\
description: two arms
settings:
  train: {steps: 4}
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic, launch.slowdown: {1: 2.0}}
launches: 4
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(tmp_path: Path, text: str) -> list[str]:
    return [line.removeprefix(f"{tmp_path}/mine.yaml:") for line in refused(load_cells, written(tmp_path, text))]


def test_every_file_of_the_folder_is_a_recipe_and_none_is_forgotten():
    files = {path.name for path in recipes_dir().glob("*") if path.is_file()}
    assert len(SHIPPED) > 15
    assert files == {*(f"{name}.yaml" for name in SHIPPED), "multinode.slurm", "length_regression.py"}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_load_and_open_with_goal_command_time_and_expectation(name):
    path = find_recipe(name)

    recipe = load_recipe(path)

    header = path.read_text(encoding="utf-8").partition("\ndescription:")[0]
    told = ("\n# Time: ", "\n# Expect: ", f"#     dynbench compare recipes/{name}.yaml")
    assert header.startswith("# Goal: ") and all(part in header for part in told)
    assert recipe.launches.count % 2 == 0
    assert recipe.baseline in recipe.arms
    for config in recipe.arms.values():
        assert whole_window_steps(config) == {}


def test_cells_lie_between_settings_and_arms_and_keep_their_lines(tmp_path):
    cells = "cells:\n  - {train.steps: 6, train.seed: 1}\n  - {launch.slowdown: {0: 3.0}, train.steps: 8}\n"
    first, second = load_cells(written(tmp_path, GOOD + cells), flags={"train.seed": 9})
    assert [recipe.arms["static"].train.steps for recipe in (first, second)] == [6, 8]
    assert first.arms["static"].train.seed == 9
    assert second.arms["static"].launch.slowdown == {0: 3.0}
    assert second.arms["partition"].launch.slowdown == {1: 2.0}
    assert dict(first.cell) == {"train.steps": 6}, "the seed is not the cell's"
    assert dict(second.cell) == {"launch.slowdown": {0: 3.0}, "train.steps": 8}
    assert load_recipe(written(tmp_path, GOOD)).cell == {}


def test_command_line_over_arm_over_settings_over_defaults(tmp_path):
    flags = {"train.global_batch": "32", "train.steps": None}
    (recipe,) = load_cells(written(tmp_path, GOOD), ["train.seed=5"], flags)
    config = recipe.arms["partition"]
    assert (config.train.steps, config.train.seed, config.train.global_batch) == (4, 5, 32)
    assert (config.schedule.mode, config.launch.slowdown) == ("dynamic", {1: 2.0})
    assert (recipe.baseline, recipe.arms["static"].schedule.mode) == ("static", "static")


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path):
    text = GOOD.replace("steps", "stepz").replace("schedule.mode", "schedule.mood")
    found = problems(tmp_path, text + "baseline: statik\n")

    said = {"9": "Did you mean 'static'?", "3": "Did you mean 'steps'?", "7": "Did you mean 'mode'?"}
    assert [line.partition(":")[0] for line in found] == list(said)
    assert all(word in line for word, line in zip(said.values(), found, strict=True))


@pytest.mark.parametrize(
    ("old", "new", "pattern"),
    [
        ("description: two arms\n", "", r"description: must be given"),
        ("launches: 4", "launchez: 4", r"^8: launchez: unknown key. Did you mean 'launches'\? Allowed: description"),
        ("name: partition", "nmae: partition", r"^6: arms.1.nmae: unknown key. Did you mean 'name'\?"),
        ("name: partition", "name: static", r"^6: arms.1.name: 'static' is the name of an earlier arm"),
        ("launches: 4", "launches: 4\norder: abab", r"^9: order: 'abab' is not allowed"),
        ("  - name: static\n", "", r"^4: arms: 1 given; a comparison needs two or more"),
        ("settings:", "settings: 3\nsettingz:", r"^2: settings: 3 is not allowed: input should be a valid dictionary"),
    ],
)
def test_one_mistake(tmp_path, old, new, pattern):
    found = problems(tmp_path, GOOD.replace(old, new))

    assert any(re.search(pattern, line) for line in found), found


def test_recipes_are_found_by_path_and_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, GOOD)

    assert find_recipe(str(path)) == path
    assert find_recipe("sst2").name == "sst2.yaml"
    assert find_recipe("recipes/sst2.yaml") == find_recipe("sst2")
    with pytest.raises(UsageError, match="Did you mean 'quickstart'") as caught:
        find_recipe("quikstart")
    assert "sst2_cost_types" in caught.value.hint


def launches(folder: Path, text: str, **flags: object) -> Launches:
    """Those of a recipe, under options of the command line."""
    path = written(folder, GOOD.replace("launches: 4", f"launches: {text}"))
    return load_cells(path, launches=flags)[0].launches


LAUNCHES = {
    "4": Launches(count=4),
    "3": Launches(count=3),  # arms may take turns
    "{mode: interleaved, count: 3}": Launches(count=3, mode="interleaved"),
    **{f"{{half_width: {text}}}": Launches(half_width=0.03) for text in ("3%", "0.03", "'3 %'")},
}


@pytest.mark.parametrize("text", LAUNCHES)
def test_launches_are_a_number_or_a_section(tmp_path, text):
    found = launches(tmp_path, text)
    assert found == LAUNCHES[text]
    assert found.half_width != 0.03 or found.planned == 8


def test_the_command_line_is_laid_over_them(tmp_path):
    over = {"half_width": "5%", "first": 4, "block": None, "max_time_s": 90.0}
    expected = Launches(count=4, block=8, half_width=0.05, first=4, max_time_s=90.0)
    assert launches(tmp_path, "{count: 4, block: 8}", **over) == expected


@pytest.mark.parametrize("text", ["4", "{count: 4, mode: apart}", "{half_width: 3%, first: 6, max_launches: 20}"])
def test_a_resolved_recipe_loads_back(tmp_path, text):
    first = load_recipe(written(tmp_path, GOOD.replace("launches: 4", f"launches: {text}")))
    assert load_recipe(written(tmp_path, dump_recipe(first))) == first


WRONG = {
    "{count: 3, mode: apart}": "launches.count: 3 launches per arm; apart, in ABBA order,",
    "4 --launches 5 --launch-mode apart": "--launches: 5 launches per arm",
    "{half_width: 3%, first: 7, mode: apart}": "launches.first: 7 launches per arm",
    "4 --max-launches 9": "--max-launches: 9 is of no use without half_width, which is not given",
    "{count: 4, first: 6}": "launches.first: 6 is of no use without half_width",
    "{half_width: 3%, max_launches: 4}": "launches.max_launches: 4 is less than the 8 of the first stage",
    "4 --half-width wide": "--half-width: 'wide' is not allowed",
    "4 --half-width 300%": "--half-width: '300%' is not allowed",
    "4 --block 0": "--block: 0 is not allowed",
    "{cuont: 4}": "launches.cuont: unknown key. Did you mean 'count'?",
    "{mode: apartt}": "launches.mode: 'apartt' is not allowed",
    "four": "launches: 'four' is not allowed",
}
"""Launches of a recipe and options of the command line, and what is said of them."""


@pytest.mark.parametrize("given", WRONG)
def test_what_is_wrong_is_named(tmp_path, capsys, given):
    text, mark, options = given.partition(" --")
    path = written(tmp_path, GOOD.replace("launches: 4", f"launches: {text}"))
    assert main(["compare", str(path), *(mark + options).split(), "--dry-run"]) == 2
    said = capsys.readouterr().err.removeprefix("error: ").removeprefix(f"{path}:8: ")
    assert said.startswith(WRONG[given])


SHORT = short_keys({flag.names[0].removeprefix("--"): flag.key for flag in FLAGS})
TWO = "--arm static:mode=static --arm part:policy=partition"


def sweep(
    *arms: str, over: tuple[str, ...] = (), reference: str | None = None, config: str | None = None, **laid: Any
) -> tuple[Document, list[Recipe]]:
    """A command line as a document and its recipes; over them are laid `overrides`, `flags` and `launches`."""
    overrides, flags = laid.get("overrides", ()), laid.get("flags")
    keys = [text.partition("=")[0] for text in overrides]
    shared = {key: f"--set {key}" for key in keys} | dict.fromkeys(flags or {}, "--flag")
    name, document = sweep_document(reference, config, arms, over, short=SHORT, shared=shared)
    return document, resolve_cells(name, document, overrides, flags, laid.get("launches"))


words = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cs", "Cc")), max_size=12)
TEXT_KEYS = ("workload.data_path", "workload.model", "workload.text_column", "probe.memory_limit")
VALUES = {
    **dict.fromkeys(TEXT_KEYS, words),
    "schedule.policy": st.none() | st.sampled_from(["partition", "window", "prefix"]),
    "schedule.capacity": st.none() | words | st.integers(1) | st.lists(st.integers(1), min_size=1, max_size=4),
    "schedule.speeds": st.none() | st.just("auto") | st.lists(st.floats(0.1, 9), min_size=1, max_size=4),
    "schedule.window": st.integers(1),
    "train.learning_rate": st.floats(1e-300, 1e300) | st.just("auto"),
    "compress.error_feedback": st.booleans(),
    "probe.lengths": st.none() | st.lists(st.integers(1), min_size=1),
}
arm_settings = st.lists(st.sampled_from(sorted(VALUES)), unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: VALUES[key] for key in keys})
)


def read(text: str) -> tuple[dict[str, object], list[str]]:
    """The settings of an arm, and what is wrong with them."""
    found: list[str] = []
    return read_settings(text, "--arm a", SHORT, found), found


@drawn(arm_settings)
def test_settings_that_are_written_are_read_back(chosen):
    assert read(",".join(f"{key}={json.dumps(value)}" for key, value in chosen.items())) == (chosen, [])


@drawn(st.sampled_from(sorted(VALUES)), st.data())
def test_values_to_vary_are_read_back_in_order(key, data):
    wanted = data.draw(st.lists(VALUES[key], min_size=1, max_size=4, unique_by=json.dumps))
    found: list[str] = []
    assert read_values(f"{key}={','.join(map(json.dumps, wanted))}", "--over", SHORT, found) == (key, wanted)
    assert found == []


TYPED = {
    "  ": {},
    "policy=partition, window = 1": {"schedule.policy": "partition", "schedule.window": 1},
    "capacity=[6,5],window=2": {"schedule.capacity": [6, 5], "schedule.window": 2},
    "capacity=6,5,window=2": {"schedule.capacity": [6, 5], "schedule.window": 2},
    "capacity=@latest:probe": {"schedule.capacity": "@latest:probe"},
    "slowdown={0: 2, 1: 1.5}": {"launch.slowdown": {0: 2, 1: 1.5}},
    "slowdown=0:2,1:1.5,mode=static": {"launch.slowdown": {0: 2, 1: 1.5}, "schedule.mode": "static"},
    "slowdown.1=2": {"launch.slowdown.1": 2},
    "data_path=a=b:c.tsv": {"workload.data_path": "a=b:c.tsv"},
    'data_path="a,\\"b.tsv",max-length=64': {"workload.data_path": 'a,"b.tsv', "workload.max_length": 64},
    "data_path=it's[1].tsv": {"workload.data_path": "it's[1].tsv"},
    "data_path=null,eval_path='null'": {"workload.data_path": None, "workload.eval_path": "null"},
    "probe=off,sync=ddp,compress.name=none": {"probe.run": "off", "sync.name": "ddp", "compress.name": "none"},
    "rdzv-endpoint=host:29500": {"launch.rdzv_endpoint": "host:29500"},
}


@pytest.mark.parametrize("text", TYPED)
def test_settings_as_people_type_them(text):
    assert read(text) == (TYPED[text], [])


UNREADABLE = {
    "policy": "--arm a: policy: write it as key=value",
    "mode=static,window": "--arm a: window: write it as key=value",
    "mode=static,,window=1": "--arm a: nothing stands there",
    "window=": "--arm a: window: nothing stands there",
    "=3": "--arm a: =3: write it as key=value",
    "capacity=[6,5": "--arm a: capacity=[6,5: [ is not closed",
    "data_path='a,b": "--arm a: data_path='a,b: ' is not closed",
    "policy=prefix,schedule.policy=window": "--arm a: schedule.policy: given twice",
    "slowdown=0:2,slowdown.1=3": "--arm a: launch.slowdown.1: launch.slowdown holds it",
    "window=@x": "--arm a: schedule.window: '@x' is not a YAML value",
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_is_named(text):
    assert [line[: len(UNREADABLE[text])] for line in read(text)[1]] == [UNREADABLE[text]]


def test_arms_join_a_recipe_whose_baseline_stays():
    _, (recipe,) = sweep("w4:policy=window,window=4", reference="quickstart")
    shipped = load_cells(find_recipe("quickstart"))[0]
    assert replace(recipe, arms=shipped.arms) == shipped
    assert list(recipe.arms) == [*shipped.arms, "w4"] and recipe.arms["w4"].schedule.window == 4


def test_cells_of_a_recipe_are_multiplied_and_keep_their_lines(tmp_path):
    arms = "arms: [{name: a}, {name: b, set: {schedule.policy: partition}}]\n"
    path = written(tmp_path, f"description: d\n{arms}cells:\n  - {{train.steps: 4}}\n  - {{train.steps: no}}\n")

    found = refused(sweep, reference=str(path), over=("seed=1,x",))
    assert found == [
        "--over: train.seed: 'x' is not allowed. Allowed: a whole number >= 0",
        f"{path}:5: train.steps: 'no' is not allowed. Allowed: a whole number > 0",
    ]
    path.write_text(path.read_text().replace("no", "8"))
    _, recipes = sweep(reference=str(path), over=("seed=1,2",))
    cells = [(recipe.cell["train.steps"], recipe.cell["train.seed"]) for recipe in recipes]
    assert cells == [(4, 1), (4, 2), (8, 1), (8, 2)]


def test_a_configuration_file_is_what_arms_stand_on_and_a_recipe_is_joined(tmp_path):
    path = written(tmp_path, "train: {steps: 7}\nlaunch: {slowdown: {0: 2}}\n")
    _, (recipe,) = sweep("a", "b:slowdown.1=3", config=str(path))
    assert [config.train.steps for config in recipe.arms.values()] == [7, 7]
    assert [config.launch.slowdown for config in recipe.arms.values()] == [{0: 2}, {0: 2, 1: 3}]

    written(tmp_path, "description: d\narms: [{name: a}, {name: b}]\n")
    assert list(sweep("c", config=str(path))[1][0].arms) == ["a", "b", "c"]


REFUSED = {
    "quickstart --arm static": "--arm static: arms.5.name: 'static' is the name of an earlier arm",
    "--arm A:mode=static --arm b": "--arm A: arms.0.name: 'A' is not allowed; use lower-case letters",
    "--arm policy=partition --arm b": "--arm policy=partition: no name; write it as name:key=value",
    "--arm a --arm b:polcy=lpt": "--arm b: polcy: unknown key. Did you mean 'schedule.policy'?",
    "--arm a --arm b:policy=partitoin": "--arm b: schedule.policy: 'partitoin' is not allowed. Did you mean 'partit",
    "--arm a --arm b:name=ddp": "--arm b: name: unknown key. Did you mean 'workload.name' or 'sync.name' or 'compress.",
    "--arm a --arm b:mode=static,policy=window": "--arm b: schedule.policy: 'window' needs schedule.mode dynamic",
    "--arm a --arm b:slowdown.1=0.5": "--arm b: launch.slowdown: {1: 0.5} is not allowed",
    "--arm a --arm b:window=2 --set schedule.window=1": "--arm b: schedule.window: --set schedule.window sets",
    "--arm a --arm b:window=2 --window 1": "--arm b: schedule.window: --window sets schedule.window",
    f"{TWO} --over seed=1,2 --set train.seed=3": "--over train.seed: --set train.seed sets",
    f"{TWO} --over mode=static,dynamic": "--over schedule.mode: arm static sets schedule.mode itself",
    "--arm a --arm b:slowdown.0=2 --over slowdown=0:2,1:2": "--over launch.slowdown: arm b sets launch.slowdown",
    f"{TWO} --over seed=1,2 --over train.seed=3": "--over train.seed: train.seed is varied already",
    f"{TWO} --over seed=1,1": "--over train.seed: 1 is given twice",
    f"{TWO} --over seed=": "--over train.seed: nothing stands there",
    f"{TWO} --over seed": "--over seed: write it as key=value,value",
    f"{TWO} --over capacity=[1,2": "--over schedule.capacity: [1,2: [ is not closed",
    f"{TWO} --over seed=1,-2": "--over: train.seed: -2 is not allowed. Allowed: a whole number >= 0",
    "regimes --over global_batch=8,9": "--over train.global_batch: the recipe's cells",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_wrong_or_says_two_things_is_refused_by_name(line, capsys):
    assert main(["compare", *line.split(), "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {REFUSED[line]}")


def test_a_configuration_needs_two_arms(tmp_path):
    path = written(tmp_path, "train: {steps: 3}\n")
    for arms in ((), ("a",)):
        with pytest.raises(UsageError, match=f"a configuration, and {len(arms)} arms to compare"):
            sweep(*arms, config=str(path))


OTHERS = ("first_steps", "buckets", "sync", "ps_allreduce_ddp", "fsdp_bottleneck", "scaling")
"""Recipes of samples that the policy of a further arm cannot deal, with a server, which is not slowed down, or with an
arm of one rank, which has no second."""


@pytest.mark.parametrize("name", [name for name in list_recipes() if name not in OTHERS])
@pytest.mark.parametrize(
    "laid",
    [
        {},
        {"overrides": ("train={steps: 16}", "schedule.cost_type=attention", "launch.slowdown.0=2")},
        {"flags": {"train.global_batch": "96", "launch.slowdown": "1:2", "probe.run": "off"}},
    ],
    ids=["alone", "set", "flags"],
)
def test_a_recipe_with_options_is_written_as_one_that_needs_none(tmp_path, name, laid):
    document, recipes = sweep("more:window=16,policy=window", reference=name, **laid)
    path = tmp_path / f"{recipes[0].name}.yaml"
    path.write_text(recipe_yaml(written_recipe(document, laid.get("overrides", ()), laid.get("flags") or {}, recipes)))
    # what an option goes over is no longer named by a cell
    assert [replace(recipe, cell={}) for recipe in load_cells(path)] == [replace(each, cell={}) for each in recipes]
