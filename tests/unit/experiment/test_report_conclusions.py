"""A conclusion says no more than the verdict, the level and the warnings allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from languages import facts
from unit.experiment.conftest import Reported

from dynbench.analysis.checks.evidence import Seen, worded
from dynbench.experiment.report_conclusions import conclude, doubts_of, training_of
from dynbench.experiment.report_input import saved_hours

LOCAL = {"candidate": "local", "level": "tokens", "speedup": 1.353, "ci95": [1.3, 1.4]}
BY_HAND = {"candidate": "by_hand", "speedup": 1.1, "ci95": [1.05, 1.15]}
INT8: dict[str, Any] = {"candidate": "int8", "speedup": 1.2, "compared": {"compress.name": ["none", "int8"]}}
LATE = {"candidate": "late", "speedup": 1.5, "compared": {**INT8["compared"], "compress.start_step": [0, 1]}}
GROUP = {"candidate": "group", "level": "stream", "speedup": 1.77, "ci95": [1.75, 1.79]}
WINDOW = {"candidate": "window", "level": "window", "speedup": 1.6, "ci95": [1.5, 1.7]}
LEAK = "in flattened samples see each other (gradient 2e-02)"
LEAKING = {"candidate": "flattened", "speedup": 3.0, "ci95": [2.9, 3.1], "level": "tokens", "leak": LEAK}
PACKED = {"candidate": "packed", "speedup": 2.0, "ci95": [1.9, 2.1]}
SLOWER = {"candidate": "slow", "verdict": "SLOWER", "speedup": 0.6, "ci95": [0.5, 0.7]}
SAME = {"candidate": "slow", "verdict": "SAME", "speedup": 1.003, "ci95": [0.99, 1.01]}
UNSURE = {"verdict": "AMBIGUOUS", "speedup": 0.993, "ci95": [0.5, 2.0]}
ESTIMATED = {"verdict": "ESTIMATE", "speedup": 0.993, "ci95": None}
FLAT = {"candidate": "flat", "speedup": 0.99, "verdict": "AMBIGUOUS"}
FLAT_SLOWER = {**FLAT, "verdict": "SLOWER"}
ABOVE, BELOW = ({**LOCAL, "speedup": speedup, "verdict": "AMBIGUOUS"} for speedup in (1.2, 0.9))
"""An arm that is another training, and comes out faster, or not, by no verdict."""
AS_FAST = {**BY_HAND, "speedup": 0.98, "verdict": "SAME"}
LOOKS_FAST = {"candidate": "prefix", "speedup": 1.9, "ci95": [0.9, 4.0]}


def late(start: int) -> dict[str, Any]:
    """An arm that compresses from this of 35 steps on, 5 of them warm-up."""
    flags = {"late": {"compress.name": "int8", "compress.start_step": start}}
    return {"flags": flags, "question": "compress"}


def pair(faster: str | None) -> dict[str, Any]:
    """What launches say of the best and of another that was found faster, and of the best and one as fast."""
    pairs = [("other", "by_hand", faster), ("by_hand", "slow", None)]
    return {"pairs": [{"baseline": one, "candidate": two, "faster": which} for one, two, which in pairs]}


SYNC: dict[str, Any] = {"flags": {"local": {"sync.name": "local_sgd"}}, "question": "sync"}
NEAR = [{**BY_HAND, "speedup": 1.2}, {"candidate": "other", "speedup": 1.19}, SAME]
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, object]]] = {
    "faster by verdict": ([{**LOOKS_FAST, "verdict": "AMBIGUOUS"}, {}], {}, {"best": "partition", "advice": "FASTER"}),
    "comparable": ([{**LOOKS_FAST, "verdict": "INCOMPARABLE"}, {}], {}, {"best": "partition", "advice": "FASTER"}),
    "on the same samples": ([GROUP, WINDOW], {}, {"best": "window", "other": "group"}),
    "on others": (
        [GROUP, {**WINDOW, "verdict": "SLOWER"}],
        {},
        {"best": "group", "other": None, "advice": "open", "same": "window"},
    ),
    "never compressed": ([LATE, {**INT8, "speedup": 1.1}], late(35), {"best": "int8"}),
    "compressed at last": ([LATE, {**INT8, "speedup": 1.1}], late(30), {"best": "late"}),
    "samples see each other": ([LEAKING, PACKED], {}, {"best": "packed", "advice": "FASTER"}),
    "nothing but these": ([LEAKING, SLOWER], {}, {"best": "flattened", "advice": "other"}),
    "launches do not separate": (NEAR, pair(None), {"near": ["other"]}),
    "launches separate": (NEAR, pair("by_hand"), {"near": []}),
    "best of the same": ([FLAT, SLOWER, ABOVE], SYNC, {"among": "same", "local undecided": True}),
    "best of all": ([FLAT, SLOWER, BELOW], SYNC, {"among": "all", "local undecided": True}),
    "slower, of the same": ([FLAT_SLOWER, SLOWER, ABOVE], SYNC, {"among": "same", "local undecided": True}),
    "slower, of all": ([FLAT_SLOWER, SLOWER, AS_FAST], SYNC, {"among": "all", "local undecided": False}),
    "no hours if ambiguous": ([UNSURE], {}, {"hours": [None], "advice": "AMBIGUOUS"}),
    "no hours by an estimate": ([ESTIMATED], {}, {"hours": [None], "advice": "ESTIMATE"}),
    "no hours if the same": ([SAME], {}, {"hours": [None], "advice": "SAME"}),
    "no hours if slower": ([SLOWER], {}, {"hours": [None], "advice": "SLOWER"}),
    "no hours by other steps over as many tokens": ([{}, {**GROUP, "level": "tokens"}], {}, {"hours": ["200", None]}),
    "hours of as many ranks": ([{}], {"question": "sync"}, {"hours": ["200"], "advice": "FASTER"}),
    "no hours of more ranks": (
        [{}],
        {"question": "sync", "summaries": {"partition": {"world_size": 4}}},
        {"hours": [None], "advice": "ranks"},
    ),
}
"""What a report is of, and what is concluded from it."""


@pytest.mark.parametrize(("changes", "given", "expected"), CASES.values(), ids=CASES)
def test_what_is_concluded(
    reported: Reported, changes: list[dict[str, Any]], given: dict[str, Any], expected: dict[str, object]
) -> None:
    subject = reported(*changes, **given)
    found = conclude(subject)
    told = {
        "best": found.best and found.best.candidate,
        "other": found.other and found.other[0].candidate,
        "same": found.same and found.same.candidate,
        "advice": found.advice,
        "near": found.near,
        "among": found.among,
        "local undecided": "local" in found.undecided,
        "hours": [saved_hours(item, subject) for item in subject.comparisons],
    }
    assert {key: told[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("strategy", "training"),
    [("local_sgd", "apart"), ("diloco", "apart"), ("ddp_noop", "untrained"), ("bucketed", "batch")],
)
def test_another_training_is_never_recommended_for_its_speed(reported: Reported, strategy: str, training: str) -> None:
    flags = {"local": {"sync.name": strategy}}
    subject = reported(LOCAL, {**BY_HAND, "verdict": "SAME"}, flags=flags, question="sync")
    assert training_of(subject, subject.comparisons[0]).training == training
    assert conclude(subject).advice == "other"

    subject = reported(LOCAL, BY_HAND, flags=flags, question="sync")
    found = conclude(subject)
    assert found.best is not None and found.best.candidate == "by_hand"
    assert found.other is not None and found.other[0].candidate == "local" and found.other[1].training == training
    assert found.advice == "FASTER" and saved_hours(found.best, subject) == "91", "of 1,000 GPU-hours"


@pytest.mark.parametrize(
    ("loss", "drift", "training"),
    [(0.9, 0.0, "same"), (1.2, 0.0, "worse"), (None, 0.2, "drift"), (None, 0.01, "unproven")],
)
def test_what_is_lossy_is_the_same_training_only_where_evaluations_show_it(
    reported: Reported, loss: float | None, drift: float, training: str
) -> None:
    """Of two seeds alike, so that the interval is a point."""
    summaries = {"static": {"eval": {"loss": 1.0}}, "int8": {"eval": {"loss": loss}}}
    subject = reported({**INT8, "loss_drift": drift}, summaries=summaries, launches=2, question="levers")
    assert training_of(subject, subject.comparisons[0]).training == training
    keys = {"same": "FASTER", "unproven": "open"}
    assert conclude(subject).advice == keys.get(training, "other")


def found(check: str, case: str | dict[str, str] = "", **values: object) -> dict[str, object]:
    return worded(check, Seen("warn", values, case)).as_dict()


FEW_LAUNCHES = {"seen": "few", "limit": "few", "hint": "more"}
FEW = {"baseline": "static", "pairs": 2, "fewest": 4, "recipe": "demo.yaml", "launches": 4}
WARM = {"first_ms": 9.0, "pace": 2.0, "deviations": 20.0, "limit": 3.5, "warmup_steps": 10}
DRIFTS = {"drift": 0.2, "limit": 0.1, "chance": 0.015, "p": 0.001}


@pytest.mark.parametrize("verdict", ["FASTER", "SLOWER", "SAME"])
def test_two_launches_with_warnings_end_in_what_to_do_next(reported: Reported, verdict: str) -> None:
    checks = [
        found("few_launches", FEW_LAUNCHES, candidate="part", **FEW),
        found("short_warmup", run="part-1", **WARM),
    ]
    subject = reported({"candidate": "part", "verdict": verdict, "launches": 2}, checks=checks)
    assert conclude(subject).advice == "again" and facts(subject)["doubts"] == ["few_launches", "short_warmup"]
    shown = [(each["check"], each["times"]) for each in facts(subject)["warnings"]]
    assert shown == [("short_warmup", 1), ("few_launches", 1)], "the verdict says how many launches there are"


def test_a_failed_check_comes_before_anything_to_compare(reported: Reported) -> None:
    failed = {**found("short_warmup", run="part-1", **WARM), "severity": "fail"}
    alone = replace(reported({"candidate": "part"}, checks=[failed]), comparisons=[])
    assert conclude(alone).advice == "failed"
    assert conclude(replace(alone, checks=[])).advice == conclude(alone).claim != "failed"


def test_what_is_not_comparable_has_no_level(reported: Reported) -> None:
    for verdict, levels in (("FASTER", ["stream"]), ("INCOMPARABLE", [])):
        assert facts(reported({"candidate": "part", "verdict": verdict, "level": "stream"}))["levels_used"] == levels


PARITY = found("loss_parity", {"limit": "given", "hint": "gradients"}, candidate="part", difference=1.0, tolerance=0.1)


@pytest.mark.parametrize(
    ("check", "doubts"),
    [
        (found("few_launches", FEW_LAUNCHES, candidate="other", **FEW), []),
        (found("short_warmup", run="other-1", **WARM), []),
        (found("short_warmup", run="static-1", **WARM, in_doubt=["other"]), []),
        (found("planning_cost", "other", arm="part", share=0.02, limit=0.01), []),
        ({**found("drift", "slower", run="part-1", **DRIFTS), "severity": "info"}, []),
        (found("drift", "slower", run="part-1", **DRIFTS), ["drift"]),
        (found("drift", "slower", run="static-1", **DRIFTS), ["drift"]),
        ({**PARITY, "severity": "fail"}, ["loss_parity"]),
    ],
    ids=["other arm", "its run", "verdict on another", "planning", "info", "best", "baseline", "failed"],
)
def test_only_what_is_said_of_the_best_arm_or_the_baseline_is_in_its_way(
    reported: Reported, check: dict[str, object], doubts: list[str]
) -> None:
    """Also where the verdict on another arm depends on it; what fails makes numbers wrong, whatever it is."""
    subject = reported({"candidate": "part"}, {"candidate": "other", "speedup": 1.1}, checks=[check])
    concluded = conclude(subject)
    assert concluded.best is not None and concluded.best.candidate == "part"
    assert [each.id for each in doubts_of(subject, concluded.best)] == doubts
    assert (concluded.advice == "FASTER") == (doubts == [])
