"""Figures that a text quotes from a reference result are those of the result."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import READMES, read

REPOSITORY = Path(__file__).resolve().parent.parent.parent
REFERENCE = REPOSITORY / "results" / "reference"
FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?!\.?\w)")


@dataclass(frozen=True)
class Quote:
    """One figure: where it stands, and of which arms of which result it is the speed-up.

    Attributes:
        file: text, relative to the repository.
        pattern: finds the figure as its only group; blanks in it match any run of white space.
        result: folder below `results/reference`.
        arm: what is faster.
        over: than what.
        end: of the speed-up's interval, 0 or 1; None quotes the speed-up itself.
    """

    file: str
    pattern: str
    result: str
    arm: str
    over: str = "static"
    end: int | None = None

    def find(self, text: str) -> list[re.Match[str]]:
        """All places of a text that quote it."""
        return list(re.finditer(self.pattern.replace(" ", r"[\s#]+"), text))


HF_PEERS_ARMS = (
    "packed",
    "static_packed",
    "window8",
    "window4",
    "partition",
    "hf_batch_rebalance",
    "partition_micro",
    "prefix",
    "sorted_equal",
    "karmarkar_karp",
    "token_budget",
    "group_by_length",
    "hf_flattening",
)
QUICKSTART_ARMS = ("prefix", "partition", "window", "packed")
ENDS = (
    (None, r"([\d.]+) \[[\d.]+, [\d.]+\]"),
    (0, r"[\d.]+ \[([\d.]+), [\d.]+\]"),
    (1, r"[\d.]+ \[[\d.]+, ([\d.]+)\]"),
)
PRINTED = [(end, pattern.replace(r" \[", r"x static \[")) for end, pattern in ENDS]
POLICIES = "dynbench/guides/policies.md"
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
"""With their intervals."""
SST2 = {
    ("sst2", "partition"): r"one device `partition` is %s times as",
    ("sst2", "prefix"): r"`static`, `prefix` %s times; the",
    ("sst2_two_ranks", "partition"): r"wait for gradients, `partition` is %s times as",
}
QUOTES = (
    *(
        Quote(file, rf"\| `{arm}` \| {pattern}", "quickstart", arm, end=end)
        for file in READMES
        for arm in QUICKSTART_ARMS
        for end, pattern in ENDS
    ),
    *(
        Quote(file, rf"FASTER  {arm} {pattern}", "quickstart", arm, end=end)
        for file in READMES
        for arm in QUICKSTART_ARMS
        for end, pattern in PRINTED
    ),
    *(Quote(POLICIES, pattern, "hf_peers", arm) for arm, pattern in OVER_STATIC.items()),
    *(
        Quote(POLICIES, pattern % figure, "hf_peers", *pair, end=end)
        for pair, pattern in OVER_OTHERS.items()
        for end, figure in ENDS
    ),
    Quote(POLICIES, r"and planned packed rows ([\d.]+) times:", "hf_peers", "packed"),
    *(Quote(POLICIES, pattern % figure, *pair, end=end) for pair, pattern in SST2.items() for end, figure in ENDS),
    *(Quote("recipes/hf_peers.yaml", rf"\b{arm} (\d+\.\d+)", "hf_peers", arm) for arm in HF_PEERS_ARMS),
)
"""Every figure of `TEXTS`; a new one is a line here."""

STEPS = "results/reference/sync/steps.jsonl"
"""Times of steps, no comparison: test_quoted_steps holds what is said of them."""

TEXTS = (*READMES, POLICIES, "recipes/hf_peers.yaml")


def measured(quote: Quote) -> float:
    """Speed-up of the quote's arm over what it is held against, or an end of the interval that its verdict rests on."""
    result = json.loads((REFERENCE / quote.result / "comparison.json").read_text(encoding="utf-8"))
    found = {(item["candidate"], item["baseline"]): item for item in (*result.get("pairs", []), *result["comparisons"])}
    turned = (quote.over, quote.arm) in found
    item = found[quote.over, quote.arm] if turned else found[quote.arm, quote.over]
    ends = item.get("ci_joint") or item["ci95"]
    value = item["speedup"] if quote.end is None else ends[quote.end ^ turned]
    return float(1 / value if turned else value)


def contradictions(quote: Quote, text: str) -> list[str]:
    """Places where the text says another figure than was measured, or that it does not quote it at all."""
    value = measured(quote)
    places = quote.find(text)
    if not places:
        return [f"{quote.file} does not quote {quote.arm} over {quote.over}: {quote.pattern}"]
    wrong = []
    for place in places:
        decimals = len(place[1].partition(".")[2])
        if place[1] != f"{value:.{decimals}f}":
            wrong.append(f"{quote.file}: {place[0]!r}, measured {value:.4f} ({quote.result})")
    return wrong


def unbacked(file: str, text: str) -> list[str]:
    """Figures of the paragraphs that name a reference result, which no quote covers."""
    spans = [place.span(1) for quote in QUOTES if quote.file == file for place in quote.find(text)]
    found = []
    for paragraph in re.finditer(r"(?m)(?:^#.*\n)+|(?:^[^#\n].*\n)+", text):
        if STEPS in paragraph[0]:
            continue
        if "results/reference/" not in paragraph[0] and not any(
            paragraph.start() <= start < paragraph.end() for start, _ in spans
        ):
            continue
        for figure in FIGURE.finditer(text, *paragraph.span()):
            if figure.span() not in spans and "%" not in text[figure.end() : figure.end() + 2]:
                line = text.count("\n", 0, figure.start()) + 1
                found.append(f"{file}:{line}: {figure[0]} is quoted from no reference result")
    return found


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: f"{quote.file}-{quote.arm}-{quote.over}-{quote.end}")
def test_quoted_figure_is_the_measured_one_and_another_is_found(quote: Quote) -> None:
    text = read(quote.file)
    assert contradictions(quote, text) == []
    start, end = quote.find(text)[0].span(1)
    decimals = len(text[start:end].partition(".")[2])
    changed = f"{float(text[start:end]) + 0.01:.{decimals}f}"
    assert len(contradictions(quote, text[:start] + changed + text[end:])) == 1


@pytest.mark.parametrize("file", TEXTS)
def test_every_figure_beside_a_reference_result_is_a_quote_and_another_is_found(file: str) -> None:
    text = read(file)
    assert unbacked(file, text) == []
    place = max(quote.find(text)[0].end() for quote in QUOTES if quote.file == file)
    assert len(unbacked(file, f"{text[:place]} and 9.87 times as much{text[place:]}")) == 1


def test_reference_results_are_whole_and_name_no_machine_path() -> None:
    folders = sorted(path.parent for path in REFERENCE.glob("*/summary.md"))
    assert {path.parent for path in REFERENCE.glob("*/comparison.json")} <= set(folders)
    assert all((REFERENCE / quote.result / "comparison.json").is_file() for quote in QUOTES)
    for folder in folders:
        assert {"recipe.yaml", "env.json", "summary.csv"} <= {path.name for path in folder.iterdir()}
        for path in folder.glob("*.*"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp)/", text), f"{folder.name}/{path.name}"
        assert list((folder / "figures").glob("*.png"))
