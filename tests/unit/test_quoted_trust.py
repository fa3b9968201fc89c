"""What the READMEs say of how far comparisons can be trusted is what `make trust` found."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TRIALS = [
    json.loads(line)
    for line in (REPOSITORY / "results" / "reference" / "trust" / "trust.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
SAYS = {
    "README.md": (
        r"spreads by ([\d.]+) % where nothing else runs, and by ([\d.]+) % with another process",
        r"was SLOWER in (\d+) of (\d+) comparisons and equal arms were SAME or AMBIGUOUS in (\d+) of (\d+)",
    ),
    "README.zh-CN.md": (
        r"没有别的工作时离散 ([\d.]+) %, 有别的进程占着一个核时离散 ([\d.]+) %",
        r"在 (?P<of>\d+) 次比较中 (?P<slower>\d+) 次被判为 SLOWER,相同的方案 (\d+) 次",
    ),
}


def spread(busy: bool) -> float:
    """Standard deviation of a launch's log ratio, pooled over the comparisons, in percent."""
    return 100 * math.sqrt(np.mean([np.var(one["logs"], ddof=1) for one in TRIALS if one["busy"] is busy]))


def count(other: str, judged: Callable[[str], bool]) -> int:
    return sum(one["other"] == other and judged(one["verdict"]) for one in TRIALS)


@pytest.mark.parametrize("file", SAYS)
def test_the_texts_say_what_was_found(file: str) -> None:
    text = re.sub(r"\s+", " ", (REPOSITORY / file).read_text(encoding="utf-8"))
    spreads, verdicts = (re.search(pattern, text) for pattern in SAYS[file])
    assert spreads is not None and verdicts is not None
    assert [float(number) for number in spreads.groups()] == [round(spread(False), 1), round(spread(True), 1)]
    slower, equal = count("tenth_more", "SLOWER".__eq__), count("twin", {"SAME", "AMBIGUOUS"}.__contains__)
    assert {int(number) for number in verdicts.groups()} == {slower, equal} == {len(TRIALS) // 2}


def test_all_forty_comparisons_are_kept_once() -> None:
    assert [one["number"] for one in TRIALS] == list(range(40))


@pytest.mark.parametrize("file", SAYS)
def test_the_texts_say_how_arms_in_turns_differ_from_arms_apart(file: str) -> None:
    logs: dict[str, list[float]] = {}
    lines = (REPOSITORY / "results" / "reference" / "trust" / "equivalence.jsonl").read_text(encoding="utf-8")
    for line in map(json.loads, lines.splitlines()):
        logs.setdefault(line["way"], []).extend(line["logs"])
    turns, apart = np.array(logs["turns of 1"]), np.array(logs["apart"])
    ends = stats.ttest_ind(turns, apart, equal_var=False).confidence_interval(0.90)
    found = [f"{100 * math.expm1(log):.1f}" for log in (turns.mean() - apart.mean(), ends.low, ends.high)]
    text = re.sub(r"\s+", " ", (REPOSITORY / file).read_text(encoding="utf-8"))
    said = re.search(
        r"([-\d.]+) % ?\(90 % (?:interval|区间) ([-\d.]+) % (?:to|到) ([-\d.]+) %[;,] ?(?:各 )?(\d+) ", text
    )
    assert said is not None
    assert list(said.groups()) == [*found, str(len(turns))] and len(turns) == len(apart)
