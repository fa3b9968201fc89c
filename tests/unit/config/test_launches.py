"""`launches` of a recipe: a number or a section, percentages, and what the command line says over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.config.layers import load_mapping
from dynbench.config.recipes import Launches, dump_recipe, load_recipe, resolve_cells
from dynbench.errors import ConfigError

ARMS = "description: d\narms:\n  - name: a\n  - {name: b, set: {schedule.mode: dynamic}}\n"


def recipe(folder: Path, launches: str, **flags: object) -> Launches:
    path = folder / "r.yaml"
    path.write_text(f"{ARMS}launches: {launches}\n", encoding="utf-8")
    return resolve_cells("r", load_mapping(path), launches=flags)[0].launches


def wrong(folder: Path, launches: str, **flags: object) -> list[str]:
    with pytest.raises(ConfigError) as found:
        recipe(folder, launches, **flags)
    return list(found.value.problems)


OVER = {"half_width": "5%", "first": 4, "block": None, "max_time_s": 90.0}


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("4", {}, Launches(count=4)),
        ("3", {}, Launches(count=3)),  # arms may take turns
        ("{mode: interleaved, count: 3}", {}, Launches(count=3, mode="interleaved")),
        *((f"{{half_width: {text}}}", {}, Launches(half_width=0.03)) for text in ("3%", "0.03", "'3 %'")),
        ("{count: 4, block: 8}", OVER, Launches(count=4, block=8, half_width=0.05, first=4, max_time_s=90.0)),
    ],
)
def test_launches_are_a_number_or_a_section_under_the_command_line(tmp_path, text, flags, expected):
    found = recipe(tmp_path, text, **flags)
    assert found == expected
    assert expected.half_width != 0.03 or found.planned == 8


@pytest.mark.parametrize("text", ["4", "{count: 4, mode: apart}", "{half_width: 3%, first: 6, max_launches: 20}"])
def test_a_resolved_recipe_loads_back(tmp_path, text):
    path, arm = tmp_path / "r.yaml", "  - {name: c, set: {launch.slowdown: {1: 2.0}, train.steps: 7}}\n"
    path.write_text(f"{ARMS}{arm}launches: {text}\n", encoding="utf-8")
    first = load_recipe(path)
    path.write_text(dump_recipe(first), encoding="utf-8")
    assert load_recipe(path) == first


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("{count: 3, mode: apart}", {}, "launches.count: 3 launches per arm; apart, in ABBA order,"),
        ("4", {"count": 5, "mode": "apart"}, "--launches: 5 launches per arm"),
        ("{half_width: 3%, first: 7, mode: apart}", {}, "launches.first: 7 launches per arm"),
        ("4", {"max_launches": 9}, "--max-launches: 9 is of no use without half_width, which is not given"),
        ("{count: 4, first: 6}", {}, "launches.first: 6 is of no use without half_width"),
        ("{half_width: 3%, max_launches: 4}", {}, "launches.max_launches: 4 is less than the 8 of the first stage"),
        ("4", {"half_width": "wide"}, "--half-width: 'wide' is not allowed"),
        ("4", {"half_width": "300%"}, "--half-width: '300%' is not allowed"),
        ("4", {"block": 0}, "--block: 0 is not allowed"),
        ("{cuont: 4}", {}, "launches.cuont: unknown key. Did you mean 'count'?"),
        ("{mode: apartt}", {}, "launches.mode: 'apartt' is not allowed"),
        ("four", {}, "launches: 'four' is not allowed"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, flags, said):
    (line,) = wrong(tmp_path, text, **flags)
    assert line.partition(": ")[2].startswith(said) or line.startswith(said), line
