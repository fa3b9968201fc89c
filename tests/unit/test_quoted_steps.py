"""What the guide says of a step's time under each strategy is what `tests/speed/strategies.py` found."""

from __future__ import annotations

import json
import re

import pytest
from pages import ROOT, read

STEPS = ROOT / "results" / "reference" / "sync" / "steps.jsonl"
SAID = re.compile(r"(?:`(\w+)` )(\d\.\d\d) \[(\d\.\d\d), (\d\.\d\d)\]")
PARAGRAPH = re.compile(r"(?m)(?:^.+\n)*^.*results/reference/sync/steps\.jsonl(?:.*\n)(?:^.+\n)*")


def test_the_guide_says_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each strategy the ratio of its steps to those of `ddp`, with the ends of the interval."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "speed")
    from strategies import ratio

    found, baseline = {}, []
    for one in map(json.loads, STEPS.read_text(encoding="utf-8").splitlines()):
        if one["strategy"] == one["baseline"]:
            baseline = one["step_s"]
        else:
            low, middle, high = ratio(one["step_s"], baseline)
            found[one["strategy"]] = tuple(f"{value:.2f}" for value in (middle, low, high))
    paragraph = PARAGRAPH.search(read("dynbench/guides/synchronisation.md"))
    assert paragraph is not None
    assert {name: (*figures,) for name, *figures in SAID.findall(re.sub(r"\s+", " ", paragraph[0]))} == found
