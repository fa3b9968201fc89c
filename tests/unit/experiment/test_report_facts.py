"""What a report tells of its arms, and that it concludes no more than verdict, level, warnings and evaluations allow.

What is found of quality by paired launches where it can be is golden: `compression` and `packing_or_fewer_steps`; of
servers beside rings, too: `ps_allreduce_ddp`.
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
from unit.experiment.conftest import Json, Reported, page

from dynbench.analysis.questions import question_named
from dynbench.analysis.waste import PARTS
from dynbench.experiment.report_conclusions import (
    Effect,
    compressors,
    conclude,
    qualities,
    steps_effects,
    training_of,
)
from dynbench.experiment.report_facts import buckets_of, waterfall
from dynbench.experiment.report_input import Member, ReportInput, saved_hours
from dynbench.report import load_template
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.units import mib


def arm(candidate: str, speedup: float, verdict: str = "FASTER", **more: Any) -> Json:
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


def late(start: int) -> Json:
    """An arm that compresses from this of 35 steps on, 5 of them warm-up."""
    own = ["compress.name=int8", f"compress.start_step={start}"]
    return {"settings": {"late": own}, "question": "compress"}


def pair_of(faster: str | None) -> Json:
    """What launches say of the best and of another that was found faster, and of the best and one as fast."""
    pairs = [("other", "by_hand", faster), ("by_hand", "slow", None)]
    return {"pairs": [{"baseline": one, "candidate": two, "faster": which} for one, two, which in pairs]}


Case = tuple[Sequence[Json], Json, Json]


def case(*changes: Json, given: Json | None = None, **expected: object) -> Case:
    """What a report is of, and what is concluded from it."""
    return changes, given or {}, expected


SYNC: Json = {"settings": {"local": ["sync.name=local_sgd"]}, "question": "sync"}
MORE_RANKS: Json = {"question": "sync", "summaries": {"partition": {"world_size": 4}}}
NEAR = [arm("by_hand", 1.2), arm("other", 1.19), SAME]
AGAIN, INT8_SLOWER = arm("again", 1.4, aa=True), {**INT8, "speedup": 1.1}
CASES = {
    "faster by verdict": case(arm("prefix", 1.9, "AMBIGUOUS"), {}, best="partition", advice="FASTER"),
    "arms alike": case(AGAIN, {}, best="partition"),
    "nothing but arms alike": case(AGAIN, best=None, claim="alike", advice="alike"),
    "comparable": case(arm("prefix", 1.9, "INCOMPARABLE"), {}, best="partition", advice="FASTER"),
    "on the same samples": case(GROUP, WINDOW, best="window", other="group"),
    "on others": case(GROUP, {**WINDOW, "verdict": "SLOWER"}, best="group", other=None, advice="open", same="window"),
    "never compressed": case(LATE, INT8_SLOWER, given=late(35), best="int8"),
    "compressed at last": case(LATE, INT8_SLOWER, given=late(30), best="late"),
    "samples see each other": case(LEAKING, PACKED, best="packed", advice="FASTER"),
    "nothing but these": case(LEAKING, SLOWER, best="flattened", advice="other"),
    "launches do not separate": case(*NEAR, given=pair_of(None), near=["other"]),
    "launches separate": case(*NEAR, given=pair_of("by_hand"), near=[]),
    "best of the same": case(FLAT, SLOWER, ABOVE, given=SYNC, among="same", undecided=True),
    "best of all": case(FLAT, SLOWER, BELOW, given=SYNC, among="all", undecided=True),
    "slower, of the same": case(FLAT_SLOWER, SLOWER, ABOVE, given=SYNC, among="same", undecided=True),
    "slower, of all": case(FLAT_SLOWER, SLOWER, arm("by_hand", 0.98, "SAME"), given=SYNC, among="all"),
    "no hours by other steps over as many tokens": case({}, {**GROUP, "level": "tokens"}, hours=["200", None]),
    "hours of as many ranks": case({}, given={"question": "sync"}, hours=["200"], advice="FASTER"),
    "no hours of more ranks": case({}, given=MORE_RANKS, hours=[None], advice="ranks"),
    **{
        f"no hours if {verdict}": case(arm("slow", 0.993, verdict), hours=[None], advice=verdict)
        for verdict in ("AMBIGUOUS", "ESTIMATE", "SAME", "SLOWER")
    },
}


@pytest.mark.parametrize(("changes", "given", "expected"), CASES.values(), ids=CASES)
def test_what_is_concluded(reported: Reported, changes: Sequence[Json], given: Json, expected: Json) -> None:
    subject = reported(*changes, **given)
    found = conclude(subject)
    told = vars(found) | {
        "best": found.best and found.best.candidate,
        "other": found.other and found.other[0].candidate,
        "same": found.same and found.same.candidate,
        "undecided": "local" in found.undecided,
        "hours": [saved_hours(item, subject) for item in subject.comparisons],
    }
    assert {key: told[key] for key in expected} == expected


TRAINED = {"local_sgd": "apart", "diloco": "apart", "ddp_noop": "untrained", "bucketed": "batch"}


@pytest.mark.parametrize("strategy", TRAINED)
def test_another_training_is_never_recommended_for_its_speed(reported: Reported, strategy: str) -> None:
    settings, training = {"local": [f"sync.name={strategy}"]}, TRAINED[strategy]
    for verdict, advice, best in (("SAME", "other", "local"), ("FASTER", "FASTER", "by_hand")):
        subject = reported(LOCAL, {**BY_HAND, "verdict": verdict}, settings=settings, question="sync")
        found = conclude(subject)
        assert training_of(subject, subject.comparisons[0]).training == training and found.advice == advice
        assert found.best is not None and found.best.candidate == best
    assert found.other is not None and found.other[0].candidate == "local" and found.other[1].training == training
    assert saved_hours(found.best, subject) == "91", "of 1,000 GPU-hours"


def test_what_is_lossy_is_the_same_training_only_where_evaluations_show_it(reported: Reported) -> None:
    """Of two seeds alike, so that the interval is a point."""
    advice = {"same": "FASTER", "unproven": "open"}
    for loss, drift, training in (
        (0.9, 0.0, "same"),
        (1.2, 0.0, "worse"),
        (None, 0.2, "drift"),
        (None, 0.01, "unproven"),
    ):
        summaries = {"static": {"eval": {"loss": 1.0}}, "int8": {"eval": {"loss": loss}}}
        subject = reported({**INT8, "loss_drift": drift}, summaries=summaries, launches=2, question="levers")
        assert training_of(subject, subject.comparisons[0]).training == training
        assert conclude(subject).advice == advice.get(training, "other")


NOTED = {"seen": "something", "limit": "nothing", "hint": "Look."}
WARM = {"severity": "warn", **NOTED, "id": "short_warmup", "values": {"run": "part-1"}}


def test_a_failed_check_comes_before_anything_to_compare(reported: Reported) -> None:
    alone = replace(reported({"candidate": "part"}, checks=[WARM | {"severity": "fail"}]), comparisons=[])
    assert conclude(alone).advice == "failed"
    assert conclude(replace(alone, checks=[])).advice == conclude(alone).claim != "failed"


def test_what_is_not_comparable_has_no_level(reported: Reported) -> None:
    for verdict, levels in (("FASTER", ["stream"]), ("INCOMPARABLE", [])):
        assert facts(reported({"candidate": "part", "verdict": verdict, "level": "stream"}))["levels_used"] == levels


ABOUT: list[tuple[str, Json, str, bool]] = [
    ("few_launches", {"candidate": "other"}, "warn", False),
    ("short_warmup", {"run": "other-1"}, "warn", False),
    ("short_warmup", {"run": "static-1", "in_doubt": ["other"]}, "warn", False),
    ("planning_cost", {"arm": "part"}, "warn", False),
    ("drift", {"run": "part-1"}, "info", False),
    ("drift", {"run": "part-1"}, "warn", True),
    ("drift", {"run": "static-1"}, "warn", True),
    ("loss_parity", {"candidate": "part"}, "fail", True),
]
"""A check, what its finding is about and how severe it is, and whether that is in the way of what is best."""


def test_only_what_is_said_of_the_best_arm_or_the_baseline_is_in_its_way(reported: Reported) -> None:
    """Also where the verdict on another arm depends on it; what fails makes numbers wrong, whatever it is."""
    for check, values, severity, doubted in ABOUT:
        finding = {**NOTED, "id": check, "severity": severity, "values": values}
        subject = reported({"candidate": "part"}, {"candidate": "other", "speedup": 1.1}, checks=[finding])
        concluded = conclude(subject)
        assert concluded.best is not None and concluded.best.candidate == "part"
        assert facts(subject)["doubts"] == [check] * doubted and (concluded.advice == "FASTER") != doubted


ARMS = {"none": (1.0, 0.0), "fp8": (3.9, 0.0), "qsgd": (7.5, 0.004), "topk": (48.0, 1.5)}
"""By arm: compression, and by which part its perplexity is higher."""


def subject(folder: Path, **started: int) -> ReportInput:
    """Of two launches of each arm, those of `fp8` in another order."""
    arms = {}
    for name, (times, worse) in ARMS.items():
        sizes = {"compression_ratio": times, "traffic_compression_ratio": times, "steps": 12, "warmup_steps": 8}
        losses = {seed: {"eval": {"perplexity": (9 + seed) * (1 + worse)}} for seed in range(2)}
        own = {"compress.start_step": started.get(name, 0)}
        arms[name] = [Member("", "", sizes | losses[seed], None, {"train.seed": seed, **own}) for seed in losses]
    arms["fp8"].reverse()
    different = {"compress.name": ("none", "other")}
    items = [compared(baseline="none", candidate=name, compared=different) for name in ARMS if name != "none"]
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


def trained(
    few_steps: int = 64, seeds: int = 2, loss: float | None = 0.5, layouts: Sequence[str] = ("padded", "packed")
) -> dict[str, list[Member]]:
    """Arms with many steps and few, padded and packed; `loss` is that of few steps."""
    found = {}
    for (name, batch, steps, ends), layout in product((("many", 32, 256, 0.5), ("few", 128, few_steps, loss)), layouts):
        sizes = {"layout": layout, "global_batch": batch, "steps": steps, "warmup_steps": 0, "eval": {"loss": ends}}
        found[f"{name}_{layout}"] = [Member(name, "", sizes, None, {"train.seed": seed}) for seed in range(seeds)]
    return found


JUDGED = {
    (0.047, 0.053): "costs",
    (0.0005, 0.003): "least",
    (-0.001, 0.001): "none",
    (0.0002, 0.0008): "none",
    (-0.002, 0.0005): "open",
    (-0.004, -0.002): "gains",
    (-0.01, 0.08): "open",
}


def test_an_interval_is_held_against_zero_and_a_margin() -> None:
    found = {(low, high): Effect((low + high) / 2, low, high, 0.001).judgement for low, high in JUDGED}
    assert found == JUDGED


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    assert steps_effects(ReportInput(Run(tmp_path), trained(65))) == "unequal"
    for arms in (trained(layouts=["padded"]), trained(loss=None), trained(seeds=1)):
        assert steps_effects(ReportInput(Run(tmp_path), arms)) == "unknown"


def test_predicted_against_achieved_takes_probe_and_plans_of_the_same_samples_in_a_step(reported: Reported) -> None:
    """Warm-up is planned too, of samples of its own: a plan promised 2.133 where 1.488 was achieved."""
    probed = {"candidate": "probed", "speedup": 1.2, "predicted_speedup": 1.5, "bound_speedup": 2.25}
    levels = ("step", "window", "stream", "tokens")
    subject = reported(probed, *({"candidate": level, "level": level, "speedup": 1.5} for level in levels))
    sizes = {"world_size": 2, "global_batch": 64, "exact": "both", "policy": "static", "cost_type": "tokens"}
    costs = {"static": 3.0, **dict.fromkeys(levels, 1.5)}
    lines = [{"arm": name, "cost_per_token": cost, **sizes} for name, cost in costs.items()]
    write_json(subject.run.path / "solve.json", {"run": "s", "results": lines})

    found = [(each.by, each.predicted, each.reached) for each in facts(subject)["predictions"]]
    assert found == [("probe", 1.5, 1.2 / 1.5), *[("plan", 2.0, 0.75)] * 2, *[(None, None, None)] * 2]


def waste(s: float, waiting: float, **more: float) -> Json:
    return {"s": s, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": waiting, **more}


@pytest.mark.parametrize(("compute", "part"), [(600.0, "exposed_comm"), (320.0, None)])
def test_what_the_best_one_took_is_told_if_parts_agree(reported: Reported, compute: float, part: str | None) -> None:
    """It waits for 10 ms less, and exposes more communication, or takes less time in all parts than the baseline."""
    known = {"waste": waste(2.0, 0.25), "step_time_ms": {"total": 400.0}, "real_tokens": 2000}
    of_arm = waste(3.0, 0.1, exposed_comm=22 / 60) if part else waste(1.6, 0.125)
    own = {"partition": {"waste": of_arm, "step_time_ms": {"total": compute}}}
    falls = {}
    for verdict in ("SLOWER", "AMBIGUOUS", "SAME"):
        subject = reported({"verdict": verdict}, summary=known, summaries=own)
        falls[verdict] = waterfall(subject, conclude(subject).best)
    fall = falls.pop("SLOWER")
    assert (fall and (fall.faster, fall.part)) == (part and (False, part)) and {*falls.values()} == {None}
    if fall is not None:
        assert (fall.before, fall.after, fall.change, fall.left) == pytest.approx((200, 300, 100, 200))


PROFILE = {"step_ms": 100.0, "rows": [], "comm_share": 0.05, "wire_comm_share": 0.05}
"""A step of 100 ms, of which the back end moves bytes for 5."""
TOTAL = 100e6


def bucketed(folder: Path, link: float | None = None, **more: object) -> ReportInput:
    arms = {}
    for calls in (1, 4, 10, 50, 160):
        times = {"comm_transfer_ms": 50.0 + calls, "step_time_ms": 300 + calls * 0.5 + 100 / calls}
        means = {"collectives": calls, "bytes_raw": TOTAL, **times}
        summary = {"workers": 2, **{key: {"mean": each} for key, each in means.items()}, **more}
        config = {"sync.name": "ddp", "sync.bucket_mb": mib(TOTAL) / calls, "launch.link_gbps": link}
        arms[f"n{calls}"] = [Member("", "", summary, None, config)]
    return ReportInput(Run(folder), arms, question=question_named("sync"))


def test_what_the_back_end_moves_is_held_against_the_transfer_over_an_emulated_link(tmp_path: Path) -> None:
    """Of transfers of 51 ms and more, and only where buckets are asked about."""
    for link, profiled, moving in ((1.5, PROFILE, 5 / 51), (None, PROFILE, None), (1.5, None, None)):
        subject = bucketed(tmp_path, link, profile=profiled)
        found = buckets_of(subject)
        assert found is not None and found.moving == (moving and pytest.approx(moving))
        assert buckets_of(replace(subject, question=question_named("precision"))) is None


def test_arms_that_launches_do_not_tell_from_the_fastest_are_named(tmp_path: Path) -> None:
    """Of the arms, `n10` is fastest; it is told from the baseline `n1`, and from `n160`."""
    pairs = (("n1", "n10", "FASTER"), ("n1", "n4", "AMBIGUOUS"), ("n10", "n160", "SLOWER"))
    told = [compared(baseline=one, candidate=other, verdict=verdict) for one, other, verdict in pairs]
    found = buckets_of(replace(bucketed(tmp_path), comparisons=told))
    assert found is not None and found.undecided == ["n4", "n50"]


P95 = {"static": 300.0, "tokens": 260.0, "attention": 250.0, "tokens_sq": 251.0}
"""Of each arm's one launch, ms; but for `static`, an arm is called as its cost."""


def tail(one: str, other: str, verdict: str, needed: int | None = None) -> Json:
    speedup = P95[one] / P95[other]
    ends = [speedup * 0.99, speedup * 1.01]
    return {"speedup": speedup, "interval": ends, "verdict": verdict, "launches_needed": needed}


def pair(one: str, other: str, verdict: str, needed: int | None = None) -> Json:
    compared = {"schedule.cost_type": [one, other]}
    return {"baseline": one, "candidate": other, "compared": compared, "tail": tail(one, other, verdict, needed)}


@pytest.mark.parametrize(("tokens", "squared", "needed"), [("SAME", "SAME", None), ("FASTER", "AMBIGUOUS", 124)])
def test_costs_are_told_from_the_one_that_lowers_p95_most_or_with_the_launches_that_it_would_take(
    reported: Reported, tokens: str, squared: str, needed: int | None
) -> None:
    """Three arms of `prefix`; `attention` is the baseline of one pair and the candidate of the other."""
    pairs = [pair("tokens", "attention", tokens), pair("attention", "tokens_sq", squared, needed)]
    further = {"baseline": "static", "candidate": "tokens", "compared": {"schedule.policy": [1, 2]}}
    prefix = ("schedule.mode=dynamic", "schedule.policy=prefix")
    _, *costs = P95
    subject = reported(
        *({"candidate": name, "tail": tail("static", name, "FASTER")} for name in costs),
        pairs=[*pairs, pair("tokens", "tokens_sq", tokens), further],
        summaries={name: {"step_time_ms": {"p95": value}} for name, value in P95.items()},
        settings={name: [*prefix, f"schedule.cost_type={name}"] for name in costs},
    )
    (group,) = facts(subject)["cost_tails"]
    assert (group.policy, group.least) == ("prefix", "attention")
    verdicts = {"tokens": tokens, "tokens_sq": squared}
    found = {name: (each.verdict, each.speedup) for name, each in group.others.items()}
    assert found == {name: (verdict, pytest.approx(P95[name] / P95["attention"])) for name, verdict in verdicts.items()}
    assert [*group.judged("SAME")] == [name for name, verdict in verdicts.items() if verdict == "SAME"]
    assert [each.launches_needed for each in group.undecided.values()] == [needed] * (needed is not None)
    line = next(line for line in page(subject).splitlines() if line.startswith("- **`prefix`"))
    assert ("124" in line) == (needed == 124) and "`tokens_sq`" in line


def test_arms_are_told_from_the_baseline_by_verdict(reported: Reported) -> None:
    verdicts = {"tokens": ("SLOWER", None), "attention": ("AMBIGUOUS", 30), "tokens_sq": ("ESTIMATE", None)}
    changes = [
        {"candidate": name, "tail": tail("static", name, *verdict), "improvement_percent": {"step_time_ms.p95": 13.3}}
        for name, verdict in verdicts.items()
    ]
    changes[2] |= {"tail": tail("static", "tokens_sq", "FASTER"), "launches": 2}
    subject = reported(*changes)
    assert {word: list(arms) for word, arms in facts(subject)["tails"].items() if arms} == {
        "SLOWER": ["tokens"], "AMBIGUOUS": ["attention"], "ESTIMATE": ["tokens_sq"],
    }  # fmt: skip
    text = page(subject)
    assert "| tokens | -13.33 % [-14.19, -12.46] |" in text
    assert "| tokens_sq | -13.30 % |" in text, "two launches are too few for an interval"
