"""What the guide to verdicts says of how far comparisons can be trusted is what `make trust` found."""

from __future__ import annotations

import json
import math
import re
from itertools import product
from typing import Any

import numpy as np
from pages import ROOT, read
from scipy import stats

SAYS = (
    r"spreads by ([\d.]+) % where nothing else runs, and by ([\d.]+) % with another process",
    r"SLOWER in (\d+) of 10 verdicts where nothing else ran and in (\d+) of 10 beside it, the others AMBIGUOUS; "
    r"equal arms were SAME or AMBIGUOUS in (\d+) of 20",
    r"([-\d.]+) % \(90 % interval ([-\d.]+) % to ([-\d.]+) %; (\d+) ",
)
"""How launches spread, what verdicts were, and how arms in turns differ from arms apart."""


def lines(name: str) -> list[dict[str, Any]]:
    text = (ROOT / "results" / "reference" / "trust" / name).read_text(encoding="utf-8")
    return list(map(json.loads, text.splitlines()))


TRIALS = lines("trust.jsonl")


def spread(busy: bool) -> float:
    """Standard deviation of a launch's log ratio, pooled over the comparisons, in percent."""
    return 100 * math.sqrt(np.mean([np.var(one["logs"], ddof=1) for one in TRIALS if one["busy"] is busy]))


def verdicts(others: str, *busy: bool) -> list[str]:
    return [one["verdict"] for one in TRIALS if one["other"].endswith(others) and one["busy"] in busy]


def test_the_guide_says_what_was_found() -> None:
    text = re.sub(r"\s+", " ", read("dynbench/guides/verdicts.md"))
    spreads, counts, between = (re.findall(pattern, text)[0] for pattern in SAYS)
    assert spreads == tuple(f"{spread(busy):.1f}" for busy in (False, True))
    told = [verdicts("tenth_more", busy).count("SLOWER") for busy in (False, True)]
    equal, slowed = (verdicts(others, False, True) for others in ("twin", "tenth_more"))
    same = sum(each in ("SAME", "AMBIGUOUS") for each in equal)
    assert counts == (*map(str, told), str(same))
    assert {*slowed} <= {"SLOWER", "AMBIGUOUS"}

    logs: dict[str, list[float]] = {}
    for line in lines("equivalence.jsonl"):
        logs.setdefault(line["way"], []).extend(line["logs"])
    turns, apart = np.array(logs["turns of 1"]), np.array(logs["apart"])
    ends = stats.ttest_ind(turns, apart, equal_var=False).confidence_interval(0.90)
    found = [f"{100 * math.expm1(log):.1f}" for log in (turns.mean() - apart.mean(), ends.low, ends.high)]
    assert between == (*found, str(len(turns))) and len(turns) == len(apart)


def test_all_comparisons_are_kept_once() -> None:
    candidates = ("twin", "other_twin", "tenth_more", "other_tenth_more")
    assert [(one["number"], one["other"]) for one in TRIALS] == list(product(range(10), candidates))
