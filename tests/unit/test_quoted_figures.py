"""Figures that a text quotes from a reference result are those of the result."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest
from pages import READMES, ROOT, read

REFERENCE = ROOT / "results" / "reference"
FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?!\.?\w)(?!.?%)", re.DOTALL)


def compared(result: str) -> list[dict[str, Any]]:
    """Comparisons of a result with its baseline, and of its other pairs."""
    found = json.loads((REFERENCE / result / "comparison.json").read_text(encoding="utf-8"))
    return [*found["comparisons"], *found.get("pairs", [])]


class Quote(NamedTuple):
    """Where a speed-up stands, and of which arms of which result it is.

    Attributes:
        file: text, relative to the repository.
        pattern: has the speed-up as a group, and perhaps the ends of its interval as two more; blanks in it match any
            run of white space.
        result: folder below `results/reference`.
        arm: what is faster.
        over: than what.
    """

    file: str
    pattern: str
    result: str
    arm: str
    over: str = "static"

    def find(self, text: str) -> list[re.Match[str]]:
        """All places of a text that quote it."""
        return list(re.finditer(self.pattern.replace(" ", r"[\s#]+"), text))

    def measured(self) -> tuple[float, ...]:
        """The speed-up, and the ends of the interval that its verdict rests on."""
        pairs = {(item["candidate"], item["baseline"]): item for item in compared(self.result)[::-1]}
        turned = (self.over, self.arm) in pairs
        item = pairs[(self.over, self.arm) if turned else (self.arm, self.over)]
        low, high = item.get("ci_joint") or item["ci95"]
        return (1 / item["speedup"], 1 / high, 1 / low) if turned else (item["speedup"], low, high)


WITH_ENDS = r"([\d.]+) \[([\d.]+), ([\d.]+)\]"
POLICIES, PEERS = "dynbench/guides/policies.md", "recipes/hf_peers.yaml"
OVER_STATIC = {
    "packed": r"There `packed` is ([\d.]+) times as",
    "window8": r"that window is ([\d.]+) times as fast as `static`",
    "static_packed": r"`static` on packed rows is ([\d.]+) times as\s",
}
OVER_OTHERS = {
    ("packed", "hf_batch_rebalance"): r"as `static`, %s times as fast as `hf_batch_rebalance` and",
    ("packed", "window8"): r"`hf_batch_rebalance` and %s times as fast as `window` over",
    ("window8", "hf_batch_rebalance"): r"as `static` and %s times as fast as `hf_batch_",
    ("partition", "hf_batch_rebalance"): r"are not told apart \(%s\)",
    ("token_budget", "static"): r"are `token_budget`, %s times as fast as `static`, and",
    ("group_by_length", "static"): r"and `group_by_length`, %s times:",
}
SST2 = {
    ("sst2", "partition"): r"one device `partition` is %s times as",
    ("sst2", "prefix"): r"`static`, `prefix` %s times; the",
    ("sst2_two_ranks", "partition"): r"wait for gradients, `partition` is %s times as",
}
QUOTES = (
    *(
        Quote(file, pattern % WITH_ENDS.replace(r" \[", gap), "quickstart", arm)
        for file in READMES
        for arm in ("prefix", "partition", "window", "packed")
        for pattern, gap in ((rf"\| `{arm}` \| %s", r" \["), (rf"FASTER  {arm} %s", r"x static \["))
    ),
    *(Quote(POLICIES, pattern, "hf_peers", arm) for arm, pattern in OVER_STATIC.items()),
    *(Quote(POLICIES, pattern % WITH_ENDS, "hf_peers", *pair) for pair, pattern in OVER_OTHERS.items()),
    Quote(POLICIES, r"and planned packed rows ([\d.]+) times:", "hf_peers", "packed"),
    *(Quote(POLICIES, pattern % WITH_ENDS, *of) for of, pattern in SST2.items()),
    *(
        Quote(PEERS, rf"\b{arm} (\d+\.\d+)", "hf_peers", arm)
        for arm in sorted({item["candidate"] for item in compared("hf_peers") if item["baseline"] == "static"})
    ),
)
"""Every figure of `TEXTS`; a new one is a line here."""

STEPS = "results/reference/sync/steps.jsonl"
"""Times of steps, no comparison: test_quoted_steps holds what is said of them."""

TEXTS = (*READMES, POLICIES, PEERS)


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: f"{quote.file}-{quote.arm}-{quote.over}")
def test_a_quoted_figure_is_the_measured_one(quote: Quote) -> None:
    places = quote.find(read(quote.file))
    assert places
    for place in places:
        measured = zip(place.groups(), quote.measured(), strict=False)
        assert list(place.groups()) == [f"{value:.{len(said.partition('.')[2])}f}" for said, value in measured]


@pytest.mark.parametrize("file", TEXTS)
def test_every_figure_beside_a_reference_result_is_a_quote(file: str) -> None:
    text = read(file)
    places = [place for quote in QUOTES if quote.file == file for place in quote.find(text)]
    quoted = {span for place in places for span in place.regs[1:]}
    for paragraph in re.finditer(r"(?m)(?:^#.*\n)+|(?:^[^#\n].*\n)+", text):
        figures = {figure.span() for figure in FIGURE.finditer(text, *paragraph.span())}
        if STEPS not in paragraph[0] and ("results/reference/" in paragraph[0] or figures & quoted):
            assert {text[slice(*span)] for span in figures - quoted} == set(), paragraph[0]


def test_reference_results_are_whole_and_name_no_machine_path() -> None:
    folders = sorted(path.parent for path in REFERENCE.glob("*/summary.md"))
    assert {path.parent for path in REFERENCE.glob("*/comparison.json")} <= set(folders)
    for folder in folders:
        assert {"recipe.yaml", "env.json", "summary.csv"} <= {path.name for path in folder.iterdir()}
        for path in folder.glob("*.*"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp)/", text), f"{folder.name}/{path.name}"
        assert list((folder / "figures").glob("*.png"))
