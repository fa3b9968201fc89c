"""What a report says of P95: arms against the baseline, and which cost type lowers it, settled either way or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from languages import english_sentences, facts
from unit.experiment.conftest import Reported

from dynbench.experiment.report_facts import CostTypes
from dynbench.experiment.report_input import ReportInput
from dynbench.experiment.reporting import render_report

P95 = {"static": 300.0, "tokens": 260.0, "attention": 250.0, "squared": 251.0}
"""Of each arm's one launch, ms."""


def tail(one: str, other: str, verdict: str, needed: int | None = None) -> dict[str, object]:
    speedup = P95[one] / P95[other]
    ends = [speedup * 0.99, speedup * 1.01]
    return {"speedup": speedup, "interval": ends, "verdict": verdict, "launches_needed": needed}


@pytest.fixture
def planted(reported: Reported) -> Callable[..., ReportInput]:
    """A report of three arms of `prefix`, of each pair of which the verdict on P95 is given."""

    def make(**verdicts: tuple[str, int | None]) -> ReportInput:
        costs = {"tokens": "tokens", "attention": "attention", "squared": "tokens_sq"}
        pairs = []
        for name, (verdict, needed) in verdicts.items():
            one, other = name.split("_")
            compared = {"schedule.cost_type": [costs[one], costs[other]]}
            record = tail(one, other, verdict, needed)
            pairs.append({"baseline": one, "candidate": other, "compared": compared, "tail": record})
        return reported(
            *({"candidate": name, "tail": tail("static", name, "FASTER")} for name in costs),
            pairs=[*pairs, {"baseline": "static", "candidate": "tokens", "compared": {"schedule.policy": [1, 2]}}],
            summaries={name: {"step_time_ms": {"p95": value}} for name, value in P95.items()},
            flags={
                name: {"schedule.mode": "dynamic", "schedule.policy": "prefix", "schedule.cost_type": cost}
                for name, cost in costs.items()
            },
        )

    return make


def group_of(subject: ReportInput) -> CostTypes:
    (group,) = facts(subject)["cost_tails"]
    return group


def test_a_cost_that_lowers_it_is_named(planted: Callable[..., ReportInput]) -> None:
    """`attention` is the baseline of one pair and the candidate of the other."""
    faster = ("FASTER", None)
    group = group_of(planted(tokens_attention=faster, attention_squared=("SAME", None), tokens_squared=faster))
    assert (group.policy, group.least, dict(group.undecided)) == ("prefix", "attention", {})
    assert (list(group.judged("FASTER")), list(group.judged("SAME"))) == (["tokens"], ["squared"])
    assert group.others["tokens"].speedup == pytest.approx(P95["tokens"] / P95["attention"])
    assert group.others["squared"].speedup == pytest.approx(P95["squared"] / P95["attention"])


def test_costs_that_do_not_differ_are_settled_too(planted: Callable[..., ReportInput]) -> None:
    same = ("SAME", None)
    group = group_of(planted(tokens_attention=same, attention_squared=same, tokens_squared=same))
    assert (dict(group.undecided), list(group.judged("SAME"))) == ({}, ["tokens", "squared"])


def test_what_launches_do_not_tell_is_unsettled_with_the_launches_it_would_take(
    planted: Callable[..., ReportInput],
) -> None:
    faster = ("FASTER", None)
    subject = planted(tokens_attention=faster, attention_squared=("AMBIGUOUS", 124), tokens_squared=faster)
    group = group_of(subject)
    assert {name: each.launches_needed for name, each in group.undecided.items()} == {"squared": 124}
    for language in ("en", "zh"):
        text = render_report(subject, language, "md", subject.run.path, None)
        line = next(line for line in text.splitlines() if line.startswith("- **`prefix`"))
        assert "124" in line and "`squared`" in line
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
