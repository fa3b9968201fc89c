"""What is computed and printed from the recorded runs is what was accepted."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from dynbench.analysis.questions import QUESTIONS
from dynbench.config.recipes import list_recipes
from golden.accepted import KINDS, Kind, differing, read_accepted
from golden.layout import WATCHED
from golden.record import RECORDINGS
from golden.subjects import SUBJECTS, Golden, computed

LIKE_ANOTHER = (
    *("compression_fsdp", "sync", "scaling", "sst2_cost_types"),
    *(f"plans_{first}" for first in (150, 200, 250, 300, 350, 550)),
)
"""Subjects that show hardly anything that another does not; only `make test-matrix` runs them.

The plans that are left run all branches of the scheduler that any of them do, but for a few.
"""


def named(name: str) -> Any:
    """Both kinds in one process, which computes the subject once."""
    marks = [pytest.mark.xdist_group(f"golden-{name}"), *([pytest.mark.matrix] if name in LIKE_ANOTHER else [])]
    return pytest.param(name, marks=marks)


NAMES = [named(name) for name in SUBJECTS]
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


def test_what_differs_is_seen() -> None:
    old = Golden({"a": [1.0, {"b": "x"}]}, {"t": "one\ntwo\n"})
    assert not [*differing("values", old, old), *differing("words", old, old)]
    for a in ([1 + 1e-8, {"b": "x"}], [1.0], [1.0, {"b": "y"}], [1.0, {"b": "x"}, 2], [1.0, {"b": "x", "c": None}]):
        assert [*differing("values", old, Golden({"a": a}))], a
    for words in ({"t": "one\n"}, {}, {**old.words, "u": "new\n"}):
        assert [*differing("words", old, Golden(words=words))], words


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in NAMES if each.values[0] in WATCHED])
def test_every_figure_is_drawn_without_a_fault(name: str) -> None:
    drawn = now(name).figures
    assert drawn and {figure: found for figure, found in drawn.items() if found} == {}


def test_every_recipe_question_and_kind_of_run_is_recorded() -> None:
    recorded = " ".join(command for each in RECORDINGS.values() for command in each.commands)
    assert {f"compare {name}.yaml" for name in list_recipes()} <= set(re.findall(r"compare \w+\.yaml", recorded))
    assert {"train", "probe", "bench", "compare"} <= set(recorded.split())
    found = [read_accepted(name).values for name in RECORDINGS]
    asked = {value["question"] for each in found for key, value in each.items() if key.endswith("/comparison.json")}
    assert set(QUESTIONS) <= asked
