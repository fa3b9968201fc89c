"""Figures that texts quote from reference results are those of the results: of comparisons, and of the long targets.

Of each strategy the time of a step (`tests/speed/strategies.py`); how far comparisons can be trusted (`make trust`).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import READMES, ROOT, read
from scipy import stats

from dynbench.analysis.stats import paired_ratio

REFERENCE = ROOT / "results" / "reference"
FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?!\.?\w)(?!.?%)", re.DOTALL)


def compared(result: str) -> list[dict[str, Any]]:
    """Comparisons of a result with its baseline, and of its other pairs."""
    found = json.loads((REFERENCE / result / "comparison.json").read_text(encoding="utf-8"))
    return [*found["comparisons"], *found.get("pairs", [])]


Quote = tuple[str, str, str, str, str]
"""A text, a pattern with the speed-up and perhaps the ends of its interval as groups, a result, what is faster, and
than what; blanks in the pattern match any run of white space."""


def places(text: str, quote: Quote) -> list[re.Match[str]]:
    """All places of a text that quote it."""
    return list(re.finditer(quote[1].replace(" ", r"[\s#]+"), text))


def measured(result: str, arm: str, over: str) -> tuple[float, ...]:
    """The speed-up, and the ends of the interval that its verdict rests on."""
    pairs = {(item["candidate"], item["baseline"]): item for item in compared(result)[::-1]}
    turned = (over, arm) in pairs
    item = pairs[(over, arm) if turned else (arm, over)]
    low, high = item.get("ci_joint") or item["ci95"]
    return (1 / item["speedup"], 1 / high, 1 / low) if turned else (item["speedup"], low, high)


WITH_ENDS = r"([\d.]+) \[([\d.]+), ([\d.]+)\]"
POLICIES, PEERS = "dynbench/guides/policies.md", "recipes/hf_peers.yaml"
OVER_STATIC = {
    r"There `packed` is ([\d.]+) times as": "packed",
    r"that window is ([\d.]+) times as fast as `static`": "window8",
    r"`static` on packed rows is ([\d.]+) times as\s": "static_packed",
    r"and planned packed rows ([\d.]+) times:": "packed",
    rf"are `token_budget`, {WITH_ENDS} times as fast as `static`, and": "token_budget",
    rf"and `group_by_length`, {WITH_ENDS} times:": "group_by_length",
}
OVER_OTHERS = {
    rf"as `static`, {WITH_ENDS} times as fast as `hf_batch_rebalance` and": ("packed", "hf_batch_rebalance"),
    rf"`hf_batch_rebalance` and {WITH_ENDS} times as fast as `window` over": ("packed", "window8"),
    rf"as `static` and {WITH_ENDS} times as fast as `hf_batch_": ("window8", "hf_batch_rebalance"),
    rf"are not told apart \({WITH_ENDS}\)": ("partition", "hf_batch_rebalance"),
}
SST2 = {
    rf"one device `partition` is {WITH_ENDS} times as": ("sst2", "partition"),
    rf"`static`, `prefix` {WITH_ENDS} times; the": ("sst2", "prefix"),
    rf"wait for gradients, `partition` is {WITH_ENDS} times as": ("sst2_two_ranks", "partition"),
}
QUOTES: tuple[Quote, ...] = (
    *(
        (file, pattern % WITH_ENDS.replace(r" \[", gap), "quickstart", arm, "static")
        for file in READMES
        for arm in ("prefix", "partition", "window", "packed")
        for pattern, gap in ((rf"\| `{arm}` \| %s", r" \["), (rf"FASTER  {arm} %s", r"x static \["))
    ),
    *((POLICIES, pattern, "hf_peers", arm, "static") for pattern, arm in OVER_STATIC.items()),
    *((POLICIES, pattern, "hf_peers", *pair) for pattern, pair in OVER_OTHERS.items()),
    *((POLICIES, pattern, *of, "static") for pattern, of in SST2.items()),
    *(
        (PEERS, rf"\b{arm} (\d+\.\d+)", "hf_peers", arm, "static")
        for arm in sorted({item["candidate"] for item in compared("hf_peers") if item["baseline"] == "static"})
    ),
)
"""Every figure of `TEXTS`; a new one is a line here."""

STEPS = "results/reference/sync/steps.jsonl"
"""Times of steps, no comparison."""

TEXTS = (*READMES, POLICIES, PEERS)


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: "-".join(quote[::3]))
def test_a_quoted_figure_is_the_measured_one(quote: Quote) -> None:
    found = places(read(quote[0]), quote)
    assert found
    for place in found:
        pairs = zip(place.groups(), measured(*quote[2:]), strict=False)
        assert list(place.groups()) == [f"{value:.{len(said.partition('.')[2])}f}" for said, value in pairs]


@pytest.mark.parametrize("file", TEXTS)
def test_every_figure_beside_a_reference_result_is_a_quote(file: str) -> None:
    text = read(file)
    quotes = (places(text, quote) for quote in QUOTES if quote[0] == file)
    quoted = {span for found in quotes for place in found for span in place.regs[1:]}
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


SAID = re.compile(r"(?:`(\w+)` )(\d\.\d\d) \[(\d\.\d\d), (\d\.\d\d)\]")
PARAGRAPH = re.compile(r"(?m)(?:^.+\n)*^.*results/reference/sync/steps\.jsonl(?:.*\n)(?:^.+\n)*")


def lines(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def test_the_guide_says_how_long_steps_were_found_to_take() -> None:
    """Of each strategy the ratio of its steps to those of `ddp`, with the ends of the interval."""
    found, baseline = {}, []
    for one in lines(ROOT / STEPS):
        if one["strategy"] == one["baseline"]:
            baseline = one["step_s"]
        else:
            middle_and_ends = paired_ratio(one["step_s"], baseline)[:3]
            found[one["strategy"]] = tuple(f"{value:.2f}" for value in middle_and_ends)
    paragraph = PARAGRAPH.search(read("dynbench/guides/synchronisation.md"))
    assert paragraph is not None
    assert {name: (*figures,) for name, *figures in SAID.findall(re.sub(r"\s+", " ", paragraph[0]))} == found


SAYS = (
    r"spreads by ([\d.]+) % where nothing else runs, and by ([\d.]+) % with another process",
    r"SLOWER in (\d+) of 10 verdicts where nothing else ran and in (\d+) of 10 beside it, the others AMBIGUOUS; "
    r"equal arms were SAME or AMBIGUOUS in (\d+) of 20",
    r"([-\d.]+) % \(90 % interval ([-\d.]+) % to ([-\d.]+) %; (\d+) ",
)
"""How launches spread, what verdicts were, and how arms in turns differ from arms apart."""

TRIALS = lines(REFERENCE / "trust" / "trust.jsonl")


def test_the_guide_says_how_far_verdicts_were_found_to_be_trusted() -> None:
    text = re.sub(r"\s+", " ", read("dynbench/guides/verdicts.md"))
    spreads, counts, between = (re.findall(pattern, text)[0] for pattern in SAYS)
    for busy, said in zip((False, True), spreads, strict=True):
        variances = [np.var(one["logs"], ddof=1) for one in TRIALS if one["busy"] is busy]
        assert said == f"{100 * math.sqrt(np.mean(variances)):.1f}", "pooled over the comparisons, in percent"
    found = Counter((one["other"].removeprefix("other_"), one["verdict"], one["busy"]) for one in TRIALS)
    slower = [found["tenth_more", "SLOWER", busy] for busy in (False, True)]
    equal = sum(found["twin", verdict, busy] for verdict in ("SAME", "AMBIGUOUS") for busy in (False, True))
    assert counts == tuple(map(str, (*slower, equal)))
    assert {verdict for other, verdict, _ in found if other == "tenth_more"} <= {"SLOWER", "AMBIGUOUS"}

    logs: dict[str, list[float]] = {}
    for line in lines(REFERENCE / "trust" / "equivalence.jsonl"):
        logs.setdefault(line["way"], []).extend(line["logs"])
    turns, apart = np.array(logs["turns of 1"]), np.array(logs["apart"])
    ends = stats.ttest_ind(turns, apart, equal_var=False).confidence_interval(0.90)
    differ = [f"{100 * math.expm1(log):.1f}" for log in (turns.mean() - apart.mean(), ends.low, ends.high)]
    assert between == (*differ, str(len(turns))) and len(turns) == len(apart)


def test_all_comparisons_are_kept_once() -> None:
    candidates = ("twin", "other_twin", "tenth_more", "other_tenth_more")
    assert [(one["number"], one["other"]) for one in TRIALS] == list(product(range(10), candidates))
