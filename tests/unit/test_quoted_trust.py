"""What the guide to verdicts says of how far comparisons can be trusted is what `make trust` found."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from pages import read
from scipy import stats

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TRIALS = [
    json.loads(line)
    for line in (REPOSITORY / "results" / "reference" / "trust" / "trust.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
SAYS = (
    r"spreads by ([\d.]+) % where nothing else runs, and by ([\d.]+) % with another process",
    r"SLOWER in (?P<idle>\d+) of 10 verdicts where nothing else ran and in (?P<busy>\d+) of 10 beside it, the "
    r"others AMBIGUOUS; equal arms were SAME or AMBIGUOUS in (?P<equal>\d+) of 20",
)


@pytest.fixture(scope="module")
def text() -> str:
    return re.sub(r"\s+", " ", read("dynbench/guides/verdicts.md"))


def spread(busy: bool) -> float:
    """Standard deviation of a launch's log ratio, pooled over the comparisons, in percent."""
    return 100 * math.sqrt(np.mean([np.var(one["logs"], ddof=1) for one in TRIALS if one["busy"] is busy]))


def count(others: str, verdicts: Collection[str], busy: Collection[bool] = (False, True)) -> int:
    of = [one["verdict"] for one in TRIALS if one["other"].endswith(others) and one["busy"] in busy]
    return sum(verdict in verdicts for verdict in of)


def test_the_guide_says_what_was_found(text: str) -> None:
    spreads, verdicts = (re.search(pattern, text) for pattern in SAYS)
    assert spreads is not None and verdicts is not None
    assert [float(number) for number in spreads.groups()] == [round(spread(False), 1), round(spread(True), 1)]
    found = {
        "idle": count("tenth_more", ("SLOWER",), (False,)),
        "busy": count("tenth_more", ("SLOWER",), (True,)),
        "equal": count("twin", ("SAME", "AMBIGUOUS")),
    }
    assert {name: int(number) for name, number in verdicts.groupdict().items()} == found
    assert count("tenth_more", ("SLOWER", "AMBIGUOUS")) == len(TRIALS) // 2


def test_all_comparisons_are_kept_once() -> None:
    candidates = ("twin", "other_twin", "tenth_more", "other_tenth_more")
    assert [(one["number"], one["other"]) for one in TRIALS] == list(product(range(10), candidates))


def test_the_guide_says_how_arms_in_turns_differ_from_arms_apart(text: str) -> None:
    logs: dict[str, list[float]] = {}
    lines = (REPOSITORY / "results" / "reference" / "trust" / "equivalence.jsonl").read_text(encoding="utf-8")
    for line in map(json.loads, lines.splitlines()):
        logs.setdefault(line["way"], []).extend(line["logs"])
    turns, apart = np.array(logs["turns of 1"]), np.array(logs["apart"])
    ends = stats.ttest_ind(turns, apart, equal_var=False).confidence_interval(0.90)
    found = [f"{100 * math.expm1(log):.1f}" for log in (turns.mean() - apart.mean(), ends.low, ends.high)]
    said = re.search(r"([-\d.]+) % \(90 % interval ([-\d.]+) % to ([-\d.]+) %; (\d+) ", text)
    assert said is not None
    assert list(said.groups()) == [*found, str(len(turns))] and len(turns) == len(apart)
