"""Recipes: the shipped ones, what a mistake says, and that a resolved recipe loads back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from recipe_files import load_cells
from unit.config.conftest import refused

from dynbench.config.part_rules import whole_window_steps
from dynbench.config.recipes import Launches, dump_recipe, find_recipe, list_recipes, load_recipe, recipes_dir
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
    assert problems(tmp_path, GOOD + "cells:\n  - {train.stepz: 6}\n")[0].startswith("10: train.stepz: unknown key.")


def test_command_line_over_arm_over_settings_over_defaults(tmp_path):
    flags = {"train.global_batch": "32", "train.steps": None}
    (recipe,) = load_cells(written(tmp_path, GOOD), ["train.seed=5"], flags, launches={"count": 2})
    config = recipe.arms["partition"]
    assert (config.train.steps, config.train.seed, config.train.global_batch) == (4, 5, 32)
    assert (config.schedule.mode, config.launch.slowdown) == ("dynamic", {1: 2.0})
    assert (recipe.baseline, recipe.launches.count) == ("static", 2)
    assert recipe.arms["static"].schedule.mode == "static"


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path):
    text = GOOD.replace("steps", "stepz").replace("schedule.mode", "schedule.mood")
    text = text.replace("launches: 4", "launches: {count: 3, mode: apart}")

    found = problems(tmp_path, text + "baseline: statik\n")

    said = {"9": "Did you mean 'static'?", "8": "even", "3": "Did you mean 'steps'?", "7": "Did you mean 'mode'?"}
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
    "4 --count 5 --mode apart": "--launches: 5 launches per arm",
    "{half_width: 3%, first: 7, mode: apart}": "launches.first: 7 launches per arm",
    "4 --max_launches 9": "--max-launches: 9 is of no use without half_width, which is not given",
    "{count: 4, first: 6}": "launches.first: 6 is of no use without half_width",
    "{half_width: 3%, max_launches: 4}": "launches.max_launches: 4 is less than the 8 of the first stage",
    "4 --half_width wide": "--half-width: 'wide' is not allowed",
    "4 --half_width 300%": "--half-width: '300%' is not allowed",
    "4 --block 0": "--block: 0 is not allowed",
    "{cuont: 4}": "launches.cuont: unknown key. Did you mean 'count'?",
    "{mode: apartt}": "launches.mode: 'apartt' is not allowed",
    "four": "launches: 'four' is not allowed",
}
"""Launches of a recipe and options of the command line, and what is said of them."""


@pytest.mark.parametrize("given", WRONG)
def test_what_is_wrong_is_named(tmp_path, given):
    text, *options = given.split(" --")
    flags = dict(option.split() for option in options)
    typed = {name: int(value) if value.isdigit() else value for name, value in flags.items()}
    (line,) = refused(launches, tmp_path, text, **typed)
    assert WRONG[given] in (line[: len(WRONG[given])], line.partition(": ")[2][: len(WRONG[given])]), line
