"""What the guide says of a step's time under each strategy is what `tests/speed/strategies.py` found."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pages import read

REPOSITORY = Path(__file__).resolve().parent.parent.parent
STEPS = REPOSITORY / "results" / "reference" / "sync" / "steps.jsonl"
SAID = re.compile(r"(?:`(\w+)` )(\d\.\d\d) \[(\d\.\d\d), (\d\.\d\d)\]")
PARAGRAPH = re.compile(r"(?m)(?:^.+\n)*^.*results/reference/sync/steps\.jsonl(?:.*\n)(?:^.+\n)*")


def found() -> Iterator[tuple[str, tuple[str, ...]]]:
    """A strategy and its ratio to `ddp` with the ends of the interval, as a text says them."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "speed"))
    try:
        from strategies import ratio
    finally:
        sys.path.pop(0)
    baseline: list[float] = []
    for line in STEPS.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["strategy"] == one["baseline"]:
            baseline = one["step_s"]
        else:
            low, middle, high = ratio(one["step_s"], baseline)
            yield one["strategy"], tuple(f"{value:.2f}" for value in (middle, low, high))


def test_the_guide_says_what_was_found() -> None:
    paragraph = PARAGRAPH.search(read("dynbench/guides/synchronisation.md"))
    assert paragraph is not None
    said = {name: tuple(figures) for name, *figures in SAID.findall(re.sub(r"\s+", " ", paragraph[0]))}
    assert said == dict(found())
