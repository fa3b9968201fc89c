"""A conclusion says no more than the verdict, the level and the warnings allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from languages import facts
from unit.experiment.conftest import Reported

from dynbench.analysis.checks.evidence import Seen, worded
from dynbench.experiment.report_conclusions import conclude, doubts_of, training_of
from dynbench.experiment.report_input import ReportInput, saved_hours

LOCAL = {"candidate": "local", "level": "tokens", "speedup": 1.353, "ci95": [1.3, 1.4]}
BY_HAND = {"candidate": "by_hand", "speedup": 1.1, "ci95": [1.05, 1.15]}
INT8 = {"candidate": "int8", "speedup": 1.2, "compared": {"compress.name": ["none", "int8"]}}


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


def evaluated(losses: tuple[float, float]) -> list[dict[str, object]]:
    return [{"eval": {"loss": loss}} for loss in losses]


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


def test_an_arm_that_is_faster_and_the_same_comes_before_one_on_other_samples(reported: Reported) -> None:
    group = {"candidate": "group", "level": "stream", "speedup": 1.77, "ci95": [1.75, 1.79]}
    window = {"candidate": "window", "level": "window", "speedup": 1.6, "ci95": [1.5, 1.7]}
    subject = reported(group, window)
    group_one, window_one = subject.comparisons
    found = conclude(subject)
    assert found.best == window_one and found.other is not None and found.other[0] == group_one
    subject = reported(group, {**window, "verdict": "SLOWER"})
    found = conclude(subject)
    assert (found.best, found.other) == (subject.comparisons[0], None)
    assert (found.advice, found.same) == ("open", subject.comparisons[1])


def found(check: str, case: str | dict[str, str] = "", **values: object) -> dict[str, object]:
    return worded(check, Seen("warn", values, case)).as_dict()


FEW = {"baseline": "static", "pairs": 2, "fewest": 4, "recipe": "demo.yaml", "launches": 4}
WARM = {"first_ms": 9.0, "pace": 2.0, "deviations": 20.0, "limit": 3.5, "warmup_steps": 10}
DRIFTS = {"drift": 0.2, "limit": 0.1, "chance": 0.015, "p": 0.001}


@pytest.mark.parametrize("verdict", ["FASTER", "SLOWER", "SAME"])
def test_two_launches_with_warnings_end_in_what_to_do_next(reported: Reported, verdict: str) -> None:
    checks = [
        found("few_launches", {"seen": "few", "limit": "few", "hint": "more"}, candidate="part", **FEW),
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


def test_only_what_is_said_of_the_best_arm_or_the_baseline_is_in_its_way(reported: Reported) -> None:
    checks = [
        found("few_launches", {"seen": "few", "limit": "few", "hint": "more"}, candidate="other", **FEW),
        found("short_warmup", run="other-1", **WARM),
        found("planning_cost", "other", arm="part", share=0.02, limit=0.01),
        {**found("drift", "slower", run="part-1", **DRIFTS), "severity": "info"},
    ]
    subject = reported({"candidate": "part"}, {"candidate": "other", "speedup": 1.1}, checks=checks)
    assert conclude(subject).advice == "FASTER"

    overturned = found("short_warmup", run="static-1", **WARM, in_doubt=["other"])
    subject = reported({"candidate": "part"}, {"candidate": "other", "speedup": 1.1}, checks=[overturned])
    assert conclude(subject).advice == "FASTER", "the verdict on another arm depends on it"

    def doubted(subject: ReportInput) -> list[str]:
        best = conclude(subject).best
        assert best is not None
        return [check.id for check in doubts_of(subject, best)]

    for run in ("static-1", "part-1"):
        drifting = [found("drift", "slower", run=run, **DRIFTS)]
        assert doubted(reported({"candidate": "part"}, checks=drifting)) == ["drift"]
    wrong = {
        **found(
            "loss_parity", {"limit": "given", "hint": "gradients"}, candidate="part", difference=1.0, tolerance=0.1
        ),
        "severity": "fail",
    }
    doubts = doubted(reported({"candidate": "part"}, checks=[wrong]))
    assert doubts == ["loss_parity"], "what fails makes numbers wrong, whatever it is"


@pytest.mark.parametrize(("start", "named"), [(30, "late"), (35, None)])
def test_an_arm_that_never_compressed_is_not_judged(reported: Reported, start: int, named: str | None) -> None:
    """Of 35 steps, 5 of them warm-up."""
    late = {**INT8, "candidate": "late", "compared": {"compress.name": ["none", "int8"], "compress.start_step": [0, 1]}}
    flags = {"late": {"compress.name": "int8", "compress.start_step": start}}
    subject = reported({**late, "speedup": 1.5}, {**INT8, "speedup": 1.1}, flags=flags, question="compress")
    best = conclude(subject).best
    assert best is not None and best.candidate == (named or "int8")


@pytest.mark.parametrize(
    ("verdict", "speedup", "ci95"),
    [
        ("AMBIGUOUS", 0.993, [0.5, 2.0]),
        ("ESTIMATE", 0.993, None),
        ("SAME", 1.003, [0.99, 1.01]),
        ("SLOWER", 0.8, [0.7, 0.9]),
    ],
)
def test_hours_are_saved_only_by_what_is_faster(
    reported: Reported, verdict: str, speedup: float, ci95: list[float] | None
) -> None:
    subject = reported({"verdict": verdict, "speedup": speedup, "ci95": ci95})
    assert saved_hours(subject.comparisons[0], subject) is None and conclude(subject).advice == verdict


def test_hours_are_not_saved_by_other_steps_over_as_many_tokens(reported: Reported) -> None:
    """Which may need more of them: half of all hours were said to be saved by a quarter of the steps."""
    subject = reported({"candidate": "alike"}, {"candidate": "fewer", "level": "tokens"})
    assert [saved_hours(item, subject) is None for item in subject.comparisons] == [False, True]


@pytest.mark.parametrize(("faster", "near"), [(None, ["other"]), ("by_hand", [])])
def test_an_arm_found_faster_that_launches_do_not_separate_from_the_best_is_named(
    reported: Reported, faster: str | None, near: list[str]
) -> None:
    pair = {"baseline": "other", "candidate": "by_hand", "faster": faster}
    subject = reported(
        {**BY_HAND, "speedup": 1.2}, {"candidate": "other", "speedup": 1.19}, {"candidate": "slow", "verdict": "SAME"},
        pairs=[pair, {"baseline": "by_hand", "candidate": "slow", "faster": None}],
    )  # fmt: skip
    assert conclude(subject).near == near


@pytest.mark.parametrize(
    ("verdict", "local", "case"),
    [("AMBIGUOUS", 1.2, "same"), ("AMBIGUOUS", 0.9, "all"), ("SLOWER", 1.2, "same"), ("SLOWER", None, "all")],
)
def test_the_best_is_called_so_of_what_it_is_the_best_of(
    reported: Reported, verdict: str, local: float | None, case: str
) -> None:
    """A strategy that is another training comes out faster, by no verdict."""
    as_fast = {**BY_HAND, "speedup": 0.98, "verdict": "SAME"}
    further = as_fast if local is None else {**LOCAL, "speedup": local, "verdict": "AMBIGUOUS"}
    subject = reported(
        {"candidate": "flat", "speedup": 0.99, "verdict": verdict},
        {"candidate": "slow", "speedup": 0.6, "verdict": "SLOWER"},
        further,
        flags={"local": {"sync.name": "local_sgd"}},
        question="sync",
    )
    found = conclude(subject)
    assert found.among == case and ("local" in found.undecided) == (local is not None)


LEAK = "in flattened samples see each other (gradient 2e-02)"
LEAKING = {"candidate": "flattened", "speedup": 3.0, "ci95": [2.9, 3.1], "level": "tokens", "leak": LEAK}


def test_an_arm_whose_samples_see_each_other_is_not_recommended(reported: Reported) -> None:
    found = conclude(reported(LEAKING, {"candidate": "packed", "speedup": 2.0, "ci95": [1.9, 2.1]}))
    assert found.best is not None and (found.best.candidate, found.advice) == ("packed", "FASTER")
    found = conclude(reported(LEAKING, {"candidate": "slow", "verdict": "SLOWER", "speedup": 0.5, "ci95": [0.4, 0.6]}))
    assert found.best is not None and (found.best.candidate, found.advice) == ("flattened", "other")
