"""What a report says of P95: arms against the baseline, and which cost type lowers it, settled either way or not."""

from __future__ import annotations

import pytest
from languages import english_sentences, facts
from unit.experiment.conftest import Reported

from dynbench.experiment.reporting import render_report

P95 = {"static": 300.0, "tokens": 260.0, "attention": 250.0, "squared": 251.0}
"""Of each arm's one launch, ms."""
COSTS = {"tokens": "tokens", "attention": "attention", "squared": "tokens_sq"}


def tail(one: str, other: str, verdict: str, needed: int | None = None) -> dict[str, object]:
    speedup = P95[one] / P95[other]
    ends = [speedup * 0.99, speedup * 1.01]
    return {"speedup": speedup, "interval": ends, "verdict": verdict, "launches_needed": needed}


def pair(one: str, other: str, verdict: str, needed: int | None = None) -> dict[str, object]:
    compared = {"schedule.cost_type": [COSTS[one], COSTS[other]]}
    return {"baseline": one, "candidate": other, "compared": compared, "tail": tail(one, other, verdict, needed)}


@pytest.mark.parametrize(
    ("tokens", "squared", "needed", "judged"),
    [
        ("FASTER", "SAME", None, {"FASTER": ["tokens"], "SAME": ["squared"]}),
        ("SAME", "SAME", None, {"SAME": ["tokens", "squared"]}),
        ("FASTER", "AMBIGUOUS", 124, {"FASTER": ["tokens"]}),
    ],
)
def test_costs_are_told_from_the_one_that_lowers_it_most_and_what_is_unsettled_with_the_launches_it_would_take(
    reported: Reported, tokens: str, squared: str, needed: int | None, judged: dict[str, list[str]]
) -> None:
    """Three arms of `prefix`; `attention` is the baseline of one pair and the candidate of the other."""
    pairs = [pair("tokens", "attention", tokens), pair("attention", "squared", squared, needed)]
    further = {"baseline": "static", "candidate": "tokens", "compared": {"schedule.policy": [1, 2]}}
    prefix = {"schedule.mode": "dynamic", "schedule.policy": "prefix"}
    subject = reported(
        *({"candidate": name, "tail": tail("static", name, "FASTER")} for name in COSTS),
        pairs=[*pairs, pair("tokens", "squared", tokens), further],
        summaries={name: {"step_time_ms": {"p95": value}} for name, value in P95.items()},
        flags={name: {**prefix, "schedule.cost_type": cost} for name, cost in COSTS.items()},
    )
    (group,) = facts(subject)["cost_tails"]
    assert (group.policy, group.least) == ("prefix", "attention")
    assert {word: list(arms) for word in ("FASTER", "SAME") if (arms := group.judged(word))} == judged
    undecided = {"squared": needed} if squared == "AMBIGUOUS" else {}
    assert {name: each.launches_needed for name, each in group.undecided.items()} == undecided
    for name in ("tokens", "squared"):
        assert group.others[name].speedup == pytest.approx(P95[name] / P95["attention"])
    for language in ("en", "zh"):
        text = render_report(subject, language, "md", subject.run.path, None)
        line = next(line for line in text.splitlines() if line.startswith("- **`prefix`"))
        assert ("124" in line) == (needed == 124) and "`squared`" in line
        assert language == "en" or english_sentences(line) == []


def test_arms_are_told_from_the_baseline_by_verdict(reported: Reported) -> None:
    verdicts = {"tokens": ("SLOWER", None), "attention": ("AMBIGUOUS", 30), "squared": ("ESTIMATE", None)}
    changes = [
        {"candidate": name, "tail": tail("static", name, *verdict), "improvement_percent": {"step_time_ms.p95": 13.3}}
        for name, verdict in verdicts.items()
    ]
    changes[2] |= {"tail": tail("static", "squared", "FASTER"), "launches": 2}
    subject = reported(*changes)
    assert {word: list(arms) for word, arms in facts(subject)["tails"].items() if arms} == {
        "SLOWER": ["tokens"], "AMBIGUOUS": ["attention"], "ESTIMATE": ["squared"],
    }  # fmt: skip
    for language in ("en", "zh"):
        text = render_report(subject, language, "md", subject.run.path, None).replace("\N{NO-BREAK SPACE}", " ")
        assert "| tokens | -13.33 % [-14.19, -12.46] |" in text
        assert "| squared | -13.30 % |" in text, "two launches are too few for an interval"


def test_records_of_earlier_versions_have_none(reported: Reported) -> None:
    found = facts(reported({}))
    assert (found["tails"], found["cost_tails"]) == (None, [])
