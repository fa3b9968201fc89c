"""What is computed and printed from the recorded runs is what was accepted; and a change of any of it is seen."""

from __future__ import annotations

import copy
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from dynbench.analysis.questions import QUESTIONS
from dynbench.config.recipes import list_recipes
from dynbench.report import templates_dir
from golden import corpus
from golden.accepted import KINDS, Kind, differing, read_accepted
from golden.drawn import OURS, planned
from golden.layout import WATCHED
from golden.record import RECORDINGS
from golden.subjects import SUBJECTS, Golden, computed
from golden.values import Value

LONGEST = "drawn_plans"
"""`make test` draws a third of them."""
NAMES = [
    pytest.param(name, marks=[pytest.mark.xdist_group(f"golden-{name}"), *[pytest.mark.matrix] * (name == LONGEST)])
    for name in SUBJECTS
]
JUDGED = ("single", "quickstart", "solved")
"""On which the comparison with what was accepted is tried: runs, a comparison with its reports, plans offline."""
LONGEST_SHOWN = 60
"""Lines of a difference in a failure; `make golden` shows all."""
now = cache(computed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_differs(name: str, kind: Kind) -> None:
    accepted = read_accepted(name)
    assert accepted.values or accepted.words, f"nothing was accepted of {name}"
    lines = list(differing(kind, accepted, now(name)))
    assert not lines, "\n".join([*lines[:LONGEST_SHOWN], f"make golden shows all; make accept-{kind} accepts them"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in NAMES if each.values[0] in WATCHED])
def test_every_figure_is_drawn_without_a_fault(name: str) -> None:
    drawn = now(name).figures
    assert drawn and {figure: found for figure, found in drawn.items() if found} == {}


@pytest.mark.slow
def test_nothing_differs_in_a_third_of_the_drawn_plans_and_in_all_of_policies_that_are_not_ours() -> None:
    accepted = read_accepted(LONGEST).values["drawn"]
    theirs = {seed for seed, each in accepted.items() if isinstance(each, Mapping) and each["policy"] not in OURS}
    some = {seed for seed in accepted if int(seed) % 3 == 0} | theirs
    old, new = {seed: accepted[seed] for seed in some}, {seed: planned(int(seed)) for seed in some}
    assert not list(differing("values", Golden({"drawn": old}), Golden({"drawn": new})))


def test_every_recipe_question_and_kind_of_run_is_recorded() -> None:
    recorded = " ".join(command for each in RECORDINGS.values() for command in each.commands)
    assert {f"compare {name}.yaml" for name in list_recipes()} <= set(re.findall(r"compare \w+\.yaml", recorded))
    assert {"train", "probe", "bench", "compare"} <= set(recorded.split())
    found = [read_accepted(name).values for name in RECORDINGS]
    asked = {value["question"] for each in found for key, value in each.items() if key.endswith("/comparison.json")}
    assert set(QUESTIONS) <= asked


def leaves(value: Value, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The path of one number or text of every list and mapping that holds some: every table, file and plan."""
    parts = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
    plain = [key for key, part in parts if not isinstance(part, Mapping | list)]
    if plain:
        yield (*path, plain[len(plain) // 2])
    for key, part in parts:
        if isinstance(part, Mapping | list) and part:
            yield from leaves(part, (*path, key))


def changed(value: Value) -> Value:
    """A little more, or otherwise."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return f"{value}."
    return value + max(1e-8 * abs(value), 1e-9) if math.isfinite(value) else 0.0


@pytest.mark.parametrize("name", JUDGED)
def test_a_changed_value_is_seen_wherever_it_stands(name: str) -> None:
    accepted = read_accepted(name)
    places = list(leaves(accepted.values)) if accepted.values else []
    other = Golden(copy.deepcopy(accepted.values))
    assert not list(differing("values", accepted, other))
    for *path, last in places:
        at = other.values
        for key in path:
            at = at[key]
        at[last] = changed(at[last])
    assert len(list(differing("values", accepted, other))) == len(places)


@pytest.mark.parametrize("name", JUDGED)
def test_a_changed_sentence_is_seen_in_every_text(name: str) -> None:
    accepted = read_accepted(name)
    for file, text in accepted.words.items():
        middle = text.index("\n", len(text) // 2)
        for other in (f"{text[:middle]}.{text[middle:]}", None):
            words = {**accepted.words, file: other} if other else {k: v for k, v in accepted.words.items() if k != file}
            assert list(differing("words", accepted, Golden(words=words)))


unpack = corpus.unpack


def unpack_and_slow(name: str, results: Path) -> None:
    """A recording, of which the last step of one rank took a hundredth longer."""
    unpack(name, results)
    rows = next(results.glob("*-partition-*/ranks/rank_0.csv"))
    head, *others, last = rows.read_text().splitlines()
    cells = dict(zip(head.split(","), last.split(","), strict=True))
    for column in ("step_time_ms", "sync_ms"):
        cells[column] = str(1.01 * float(cells[column]))
    rows.write_text("\n".join([head, *others, ",".join(cells.values())]) + "\n")


@pytest.mark.slow
def test_a_step_that_took_longer_and_a_sentence_of_a_template_change_what_is_made_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(templates_dir(), tmp_path / "report")
    file = folder / "template.zh.md"
    file.write_text(f"{file.read_text(encoding='utf-8').rstrip()}\n\nOtherwise.\n", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("dynbench.report.templates_dir", lambda: folder)
        patch.setattr(corpus, "unpack", unpack_and_slow)
        other = computed("multinode")
    accepted = read_accepted("multinode")
    changes = list(differing("values", accepted, other))
    assert "tables" in {line.split("/")[1] for line in changes}
    assert any("step_time_ms" in line for line in changes)
    assert any(other.words[name] != text for name, text in accepted.words.items() if not name.endswith(".zh"))
    said = {name for name, text in other.words.items() if "Otherwise." in text}
    assert said == {name for name in accepted.words if name.endswith(".report.zh")}
