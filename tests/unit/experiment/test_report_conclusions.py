"""A conclusion says no more than the verdict, the level, the warnings and the evaluations allow.

What is found of quality by paired launches where it can be is golden: `compression` and `packing_or_fewer_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from compared import compared
from languages import facts
from unit.experiment.conftest import Reported

from dynbench.experiment.report_conclusions import (
    Effect,
    compressors,
    conclude,
    doubts_of,
    qualities,
    steps_effects,
    training_of,
)
from dynbench.experiment.report_input import Member, ReportInput, saved_hours
from dynbench.report import load_template
from dynbench.runs.run import Run


def arm(candidate: str, speedup: float, verdict: str = "FASTER", **more: Any) -> dict[str, Any]:
    """A candidate whose interval is close about its speed-up."""
    ends = [0.98 * speedup, 1.02 * speedup]
    return {"candidate": candidate, "speedup": speedup, "verdict": verdict, "ci95": ends, **more}


LOCAL, BY_HAND = arm("local", 1.353, level="tokens"), arm("by_hand", 1.1)
INT8 = arm("int8", 1.2, compared={"compress.name": ["none", "int8"]})
LATE = arm("late", 1.5, compared={**INT8["compared"], "compress.start_step": [0, 1]})
GROUP, WINDOW = arm("group", 1.77, level="stream"), arm("window", 1.6, level="window")
LEAKING = arm("flattened", 3.0, level="tokens", leak="in flattened samples see each other (gradient 2e-02)")
PACKED, SLOWER, SAME = arm("packed", 2.0), arm("slow", 0.6, "SLOWER"), arm("slow", 1.003, "SAME")
FLAT, FLAT_SLOWER = arm("flat", 0.99, "AMBIGUOUS"), arm("flat", 0.99, "SLOWER")
ABOVE, BELOW = (LOCAL | arm("local", speedup, "AMBIGUOUS") for speedup in (1.2, 0.9))
"""An arm that is another training, and comes out faster, or not, by no verdict."""


def late(start: int) -> dict[str, Any]:
    """An arm that compresses from this of 35 steps on, 5 of them warm-up."""
    flags = {"late": {"compress.name": "int8", "compress.start_step": start}}
    return {"flags": flags, "question": "compress"}


def pair(faster: str | None) -> dict[str, Any]:
    """What launches say of the best and of another that was found faster, and of the best and one as fast."""
    pairs = [("other", "by_hand", faster), ("by_hand", "slow", None)]
    return {"pairs": [{"baseline": one, "candidate": two, "faster": which} for one, two, which in pairs]}


SYNC: dict[str, Any] = {"flags": {"local": {"sync.name": "local_sgd"}}, "question": "sync"}
MORE_RANKS: dict[str, Any] = {"question": "sync", "summaries": {"partition": {"world_size": 4}}}
NEAR = [arm("by_hand", 1.2), arm("other", 1.19), SAME]
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, object]]] = {
    "faster by verdict": ([arm("prefix", 1.9, "AMBIGUOUS"), {}], {}, {"best": "partition", "advice": "FASTER"}),
    "arms alike": ([arm("again", 1.4, aa=True), {}], {}, {"best": "partition"}),
    "nothing but arms alike": ([arm("again", 1.4, aa=True)], {}, {"best": None, "claim": "alike", "advice": "alike"}),
    "comparable": ([arm("prefix", 1.9, "INCOMPARABLE"), {}], {}, {"best": "partition", "advice": "FASTER"}),
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
    "slower, of all": ([FLAT_SLOWER, SLOWER, arm("by_hand", 0.98, "SAME")], SYNC, {"among": "all"}),
    "no hours by other steps over as many tokens": ([{}, {**GROUP, "level": "tokens"}], {}, {"hours": ["200", None]}),
    "hours of as many ranks": ([{}], {"question": "sync"}, {"hours": ["200"], "advice": "FASTER"}),
    "no hours of more ranks": ([{}], MORE_RANKS, {"hours": [None], "advice": "ranks"}),
    **{
        f"no hours if {verdict}": ([arm("slow", 0.993, verdict)], {}, {"hours": [None], "advice": verdict})
        for verdict in ("AMBIGUOUS", "ESTIMATE", "SAME", "SLOWER")
    },
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
        "claim": found.claim,
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


NOTED = {"seen": "something", "limit": "nothing", "hint": "Look."}
WARM = {"severity": "warn", **NOTED, "id": "short_warmup", "values": {"run": "part-1"}}
FEW = {"severity": "warn", **NOTED, "id": "few_launches", "values": {"candidate": "part"}}


@pytest.mark.parametrize("verdict", ["FASTER", "SLOWER", "SAME"])
def test_two_launches_with_warnings_end_in_what_to_do_next(reported: Reported, verdict: str) -> None:
    subject = reported({"candidate": "part", "verdict": verdict, "launches": 2}, checks=[FEW, WARM])
    assert conclude(subject).advice == "again" and facts(subject)["doubts"] == ["few_launches", "short_warmup"]
    shown = [(each["check"], each["times"]) for each in facts(subject)["warnings"]]
    assert shown == [("short_warmup", 1), ("few_launches", 1)], "the verdict says how many launches there are"


def test_a_failed_check_comes_before_anything_to_compare(reported: Reported) -> None:
    alone = replace(reported({"candidate": "part"}, checks=[WARM | {"severity": "fail"}]), comparisons=[])
    assert conclude(alone).advice == "failed"
    assert conclude(replace(alone, checks=[])).advice == conclude(alone).claim != "failed"


def test_what_is_not_comparable_has_no_level(reported: Reported) -> None:
    for verdict, levels in (("FASTER", ["stream"]), ("INCOMPARABLE", [])):
        assert facts(reported({"candidate": "part", "verdict": verdict, "level": "stream"}))["levels_used"] == levels


@pytest.mark.parametrize(
    ("check", "values", "severity", "doubts"),
    [
        ("few_launches", {"candidate": "other"}, "warn", []),
        ("short_warmup", {"run": "other-1"}, "warn", []),
        ("short_warmup", {"run": "static-1", "in_doubt": ["other"]}, "warn", []),
        ("planning_cost", {"arm": "part"}, "warn", []),
        ("drift", {"run": "part-1"}, "info", []),
        ("drift", {"run": "part-1"}, "warn", ["drift"]),
        ("drift", {"run": "static-1"}, "warn", ["drift"]),
        ("loss_parity", {"candidate": "part"}, "fail", ["loss_parity"]),
    ],
    ids=["other arm", "its run", "verdict on another", "planning", "info", "best", "baseline", "failed"],
)
def test_only_what_is_said_of_the_best_arm_or_the_baseline_is_in_its_way(
    reported: Reported, check: str, values: dict[str, object], severity: str, doubts: list[str]
) -> None:
    """Also where the verdict on another arm depends on it; what fails makes numbers wrong, whatever it is."""
    finding = {**NOTED, "id": check, "severity": severity, "values": values}
    subject = reported({"candidate": "part"}, {"candidate": "other", "speedup": 1.1}, checks=[finding])
    concluded = conclude(subject)
    assert concluded.best is not None and concluded.best.candidate == "part"
    assert [each.id for each in doubts_of(subject, concluded.best)] == doubts
    assert (concluded.advice == "FASTER") == (doubts == [])


SEEDS = range(2)
ARMS = {"none": (1.0, 0.0), "fp8": (3.9, 0.0), "qsgd": (7.5, 0.004), "topk": (48.0, 1.5)}
"""By arm: compression, and by which part its perplexity is higher."""


def members(name: str, **started: int) -> list[Member]:
    times, worse = ARMS[name]
    sizes = {"compression_ratio": times, "traffic_compression_ratio": times, "steps": 12, "warmup_steps": 8}
    config = {"compress.start_step": started.get(name, 0)}
    return [
        Member("", "", sizes | {"eval": {"perplexity": (9 + seed) * (1 + worse)}}, None, {"train.seed": seed, **config})
        for seed in SEEDS
    ]


def subject(folder: Path, **started: int) -> ReportInput:
    different = {"compress.name": ("none", "other")}
    items = [compared(baseline="none", candidate=name, compared=different) for name in ARMS if name != "none"]
    arms = {name: members(name, **started) for name in ARMS}
    arms["fp8"].reverse()
    return ReportInput(Run(folder), arms, comparisons=items)


def test_of_the_arms_that_keep_the_quality_the_one_that_sends_least_is_chosen_if_all_are_known(tmp_path: Path) -> None:
    """Launches are paired by seed, whatever their order: seeds differ by more than what is allowed."""
    given, label = subject(tmp_path), load_template("en").label
    found = compressors(given, label)
    assert (found.within, found.beyond, found.open) == (["fp8", "qsgd"], ["topk"], [])
    assert found.chosen is not None and found.chosen.candidate == "qsgd"
    single = {name: runs[:1] for name, runs in given.arms.items()}
    unevaluated = {**given.arms, "topk": [Member("", "", {"eval": None}, None)] * 2}
    for arms in (single, unevaluated):
        found = compressors(ReportInput(given.run, arms, comparisons=given.comparisons), label)
        assert not found.within and not found.beyond and not found.open and found.chosen is None


def test_what_never_compressed_is_judged_no_more_than_the_baseline(tmp_path: Path) -> None:
    """It kept the baseline's quality, as it sent the baseline's gradients: the last step comes before its first."""
    _, found = qualities(subject(tmp_path, fp8=20))
    assert found["fp8"].judgement is None and found["qsgd"].judgement == "within"


def trained(few_steps: int = 64, seeds: Sequence[int] = SEEDS, loss: float | None = 0.5) -> dict[str, list[Member]]:
    """Arms with many steps and few, padded and packed; `loss` is that of few steps."""
    found = {}
    for (name, batch, steps, ends), layout in product(
        (("many", 32, 256, 0.5), ("few", 128, few_steps, loss)), ("padded", "packed")
    ):
        sizes = {"layout": layout, "global_batch": batch, "steps": steps, "warmup_steps": 0}
        summary = sizes | {"eval": {"loss": ends}}
        found[f"{name}_{layout}"] = [Member(f"{name}{seed}", "", summary, None, {"train.seed": seed}) for seed in seeds]
    return found


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.047, 0.053, "costs"),
        (0.0005, 0.003, "least"),
        (-0.001, 0.001, "none"),
        (0.0002, 0.0008, "none"),
        (-0.002, 0.0005, "open"),
        (-0.004, -0.002, "gains"),
        (-0.01, 0.08, "open"),
    ],
)
def test_an_interval_is_held_against_zero_and_a_margin(low: float, high: float, expected: str) -> None:
    assert Effect((low + high) / 2, low, high, 0.001).judgement == expected


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    unpacked = {name: found for name, found in trained().items() if "packed" not in name}
    untold = [(trained(65), "unequal"), (unpacked, "unknown"), (trained(loss=None), "unknown")]
    for arms, why in (*untold, (trained(seeds=[0]), "unknown")):
        assert steps_effects(ReportInput(Run(tmp_path), arms)) == why
