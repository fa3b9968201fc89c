"""What a report says of arms that differ in the layout and take the same steps, in both languages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import english_words, said

from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.reporting import render_report
from dynbench.report import LANGUAGES
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
PACKED = {"packed": {"layout": "packed"}}
ARMS = ({"candidate": "partition"}, {"candidate": "packed", "speedup": 2.0, "ci95": [1.9, 2.1]})


def sentences(store: RunStore, language: str = "en") -> str:
    return said(find_report_input(store, None), "layouts", language)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_what_packing_saves_at_equal_steps_stands_in_the_report(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    pairs = [*ARMS, {"baseline": "packed", "candidate": "partition", "speedup": 0.8, "ci95": [0.78, 0.84]}]
    pairs[-1]["verdict"] = "SLOWER"
    make_comparison(*ARMS, summaries=PACKED, pairs=pairs)
    static, partition = (line for line in sentences(store, language).splitlines())
    assert [text in static for text in ("`static`", "50.0\N{NO-BREAK SPACE}%", "2.000", "1.900")] == [True] * 4
    assert [text in partition for text in ("`partition`", "20.0\N{NO-BREAK SPACE}%", "1.250", "1.190")] == [True] * 4
    subject = find_report_input(store, None)
    text = render_report(subject, language, "md", subject.run.path)  # type: ignore[arg-type]  # a language
    assert sentences(store, language) in text
    if language != "en":
        assert english_words(sentences(store, language), ("static", "partition", "packed", "token")) == []


def test_packing_that_costs_time_is_said_too(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({"candidate": "packed", "verdict": "SLOWER", "speedup": 0.8, "ci95": [0.7, 0.9]}, summaries=PACKED)
    assert "`packed` takes 25.0\N{NO-BREAK SPACE}% more time per real token" in sentences(store)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("verdict", "speedup", "ends"),
    [("SAME", 1.003, (0.995, 1.011)), ("AMBIGUOUS", 1.003, (0.9, 1.1)), ("ESTIMATE", 1.003, None)],
)
def test_what_no_verdict_says_is_not_called_saved(
    store: RunStore,
    make_comparison: MakeComparison,
    verdict: str,
    speedup: float,
    ends: tuple[float, float] | None,
    turned: bool,
    language: str,
) -> None:
    """0.3 % of the time is neither saved nor lost by what these launches say, whichever of the two is the baseline."""
    own = {"speedup": 1 / speedup if turned else speedup, "ci95": ends, "verdict": verdict}
    if turned and ends is not None:
        own["ci95"] = (1 / ends[1], 1 / ends[0])
    layouts = {"static": {"layout": "packed" if turned else "padded"}, "other": {"layout": "padded"}}
    make_comparison({"candidate": "other", **own}, summaries=layouts if turned else {"other": {"layout": "packed"}})
    text = sentences(store, language)
    assert "%" not in text and "1.003" in text
    assert ("1.011" in text) == (verdict == "SAME")
    if language != "en":
        assert english_words(text) == []


@pytest.mark.parametrize(
    ("change", "summaries"),
    [
        ({"level": "window"}, PACKED),
        ({"verdict": "INCOMPARABLE"}, PACKED),
        ({}, {}),
        ({}, {"static": {"layout": "packed"}, **PACKED}),
    ],
    ids=["other samples", "incomparable", "both padded", "both packed"],
)
def test_nothing_is_said_of_arms_that_do_not_take_the_same_steps_in_two_layouts(
    store: RunStore, make_comparison: MakeComparison, change: dict[str, object], summaries: dict[str, dict[str, object]]
) -> None:
    make_comparison({"candidate": "packed", **change}, summaries=summaries)
    assert sentences(store) == ""
