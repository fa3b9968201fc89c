"""What a report says of P95: arms against the baseline, and which cost type lowers it, settled either way or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from languages import english_sentences, facts

from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.report_tail import CostTypes
from dynbench.experiment.reporting import render_report
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
P95 = {"static": 300.0, "tokens": 260.0, "attention": 250.0, "squared": 251.0}
"""Of each arm's one launch, ms."""


def tail(one: str, other: str, verdict: str, needed: int | None = None) -> dict[str, object]:
    speedup = P95[one] / P95[other]
    ends = [speedup * 0.99, speedup * 1.01]
    return {"speedup": speedup, "interval": ends, "verdict": verdict, "launches_needed": needed}


@pytest.fixture
def planted(store: RunStore, make_comparison: MakeComparison) -> Callable[..., dict[str, Any]]:
    """The facts of three arms of `prefix`, of each pair of which the verdict on P95 is given."""

    def make(**verdicts: tuple[str, int | None]) -> dict[str, Any]:
        costs = {"tokens": "tokens", "attention": "attention", "squared": "tokens_sq"}
        pairs = []
        for name, (verdict, needed) in verdicts.items():
            one, other = name.split("_")
            compared = {"schedule.cost_type": [costs[one], costs[other]]}
            record = tail(one, other, verdict, needed)
            pairs.append({"baseline": one, "candidate": other, "compared": compared, "tail": record})
        make_comparison(
            *({"candidate": name, "tail": tail("static", name, "FASTER")} for name in costs),
            pairs=[*pairs, {"baseline": "static", "candidate": "tokens", "compared": {"schedule.policy": [1, 2]}}],
            summaries={name: {"step_time_ms": {"p95": value}} for name, value in P95.items()},
            flags={
                name: {"schedule.mode": "dynamic", "schedule.policy": "prefix", "schedule.cost_type": cost}
                for name, cost in costs.items()
            },
        )
        found: dict[str, Any] = facts(find_report_input(store, None))
        return found

    return make


def group_of(found: dict[str, Any]) -> CostTypes:
    groups: list[CostTypes] = found["cost_tails"]
    (group,) = groups
    return group


def test_a_cost_that_lowers_it_is_named(planted: Callable[..., dict[str, Any]]) -> None:
    """`attention` is the baseline of one pair and the candidate of the other."""
    found = planted(
        tokens_attention=("FASTER", None), attention_squared=("SAME", None), tokens_squared=("FASTER", None)
    )
    group = group_of(found)
    assert (group.policy, group.least, dict(group.undecided)) == ("prefix", "attention", {})
    assert (list(group.judged("FASTER")), list(group.judged("SAME"))) == (["tokens"], ["squared"])
    assert group.others["tokens"].speedup == pytest.approx(P95["tokens"] / P95["attention"])
    assert group.others["squared"].speedup == pytest.approx(P95["squared"] / P95["attention"])


def test_costs_that_do_not_differ_are_settled_too(planted: Callable[..., dict[str, Any]]) -> None:
    same = ("SAME", None)
    group = group_of(planted(tokens_attention=same, attention_squared=same, tokens_squared=same))
    assert (dict(group.undecided), list(group.judged("SAME"))) == ({}, ["tokens", "squared"])


def test_what_launches_do_not_tell_is_unsettled_with_the_launches_it_would_take(
    store: RunStore, planted: Callable[..., dict[str, Any]]
) -> None:
    found = planted(
        tokens_attention=("FASTER", None), attention_squared=("AMBIGUOUS", 124), tokens_squared=("FASTER", None)
    )
    group = group_of(found)
    assert {name: each.launches_needed for name, each in group.undecided.items()} == {"squared": 124}
    subject = find_report_input(store, None)
    for language in ("en", "zh"):
        text = render_report(subject, language, "md", subject.run.path, None)
        line = next(line for line in text.splitlines() if line.startswith("- **`prefix`"))
        assert "124" in line and "`squared`" in line
        assert language == "en" or english_sentences(line) == []


def test_arms_are_told_from_the_baseline_by_verdict(store: RunStore, make_comparison: MakeComparison) -> None:
    verdicts = {"tokens": ("SLOWER", None), "attention": ("AMBIGUOUS", 30), "squared": ("ESTIMATE", None)}
    changes = [
        {"candidate": name, "tail": tail("static", name, *verdict), "improvement_percent": {"step_time_ms.p95": 13.3}}
        for name, verdict in verdicts.items()
    ]
    changes[2] |= {"tail": tail("static", "squared", "FASTER"), "launches": 2}
    make_comparison(*changes)
    subject = find_report_input(store, None)
    assert {word: list(arms) for word, arms in facts(subject)["tails"].items() if arms} == {
        "SLOWER": ["tokens"], "AMBIGUOUS": ["attention"], "ESTIMATE": ["squared"],
    }  # fmt: skip
    for language in ("en", "zh"):
        text = render_report(subject, language, "md", subject.run.path, None).replace("\N{NO-BREAK SPACE}", " ")
        assert "| tokens | -13.33 % [-14.19, -12.46] |" in text
        assert "| squared | -13.30 % |" in text, "two launches are too few for an interval"


def test_records_of_earlier_versions_have_none(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({})
    found = facts(find_report_input(store, None))
    assert (found["tails"], found["cost_tails"]) == (None, [])
