"""What a report says of the arms: predictions, the time beyond the ideal, buckets and P95.

Of servers beside rings it is golden: the recording `ps_allreduce_ddp`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compared import compared
from languages import facts
from unit.experiment.conftest import Reported

from dynbench.analysis.questions import question_named
from dynbench.analysis.waste import PARTS
from dynbench.experiment.offline_plans import Solved, planned_speedup
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_facts import buckets_of, waterfall
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.experiment.reporting import render_report
from dynbench.report import LANGUAGES
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.units import mib


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


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, 2.5),
        ({}, {"micro_batches": 2}, 2.5),
        ({}, {"cost_type": "attention"}, 2.0),
        ({}, {"speeds": [1.0, 2.0]}, 2.0),
        ({}, {"cost_type": "attention", "micro_batches": 2}, None),
        ({"policy": "lpt"}, {}, 2.5),
        ({"policy": "lpt"}, {"cost_type": "attention"}, None),
        ({}, {"cost_type": "tokens_sq"}, None),
        ({"cost_type": "tokens_sq"}, {"cost_type": "tokens_sq"}, None),
    ],
)
def test_costs_of_another_unit_are_no_time(
    before: dict[str, object], after: dict[str, object], expected: float | None
) -> None:
    common = {"cost_type": "tokens", "micro_batches": 1, "speeds": None}
    lines = [
        {"arm": "a", "policy": "static", "cost_per_token": 5.0, "speedup_vs_static": 1.0, **common, **before},
        {"arm": "b", "policy": "prefix", "cost_per_token": 2.0, "speedup_vs_static": 2.0, **common, **after},
    ]
    assert planned_speedup(Solved("s", lines), "a", "b") == expected
    assert planned_speedup(Solved("s", lines[:1]), "a", "b") is None
    assert planned_speedup(None, "a", "b") is None


def waste(s: float, waiting: float, **more: float) -> dict[str, object]:
    return {"s": s, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": waiting, **more}


@pytest.mark.parametrize(("compute", "part"), [(600.0, "exposed_comm"), (320.0, None)], ids=["slower", "faster"])
def test_what_the_best_one_took_is_told_if_parts_agree(reported: Reported, compute: float, part: str | None) -> None:
    """It waits for 10 ms less, and exposes more communication, or takes less time in all parts than the baseline."""
    known = {"waste": waste(2.0, 0.25), "step_time_ms": {"total": 400.0}, "real_tokens": 2000}
    of_arm = waste(3.0, 0.1, exposed_comm=22 / 60) if part else waste(1.6, 0.125)
    own = {"partition": {"waste": of_arm, "step_time_ms": {"total": compute}}}
    subject = reported({"verdict": "SLOWER"}, summary=known, summaries=own)
    fall = waterfall(subject, conclude(subject).best)
    if part is None or fall is None:
        assert fall is part
        return
    assert (fall.faster, fall.part) == (False, part)
    assert (fall.before, fall.after, fall.change, fall.left) == pytest.approx((200, 300, 100, 200))
    for undecided in ("AMBIGUOUS", "SAME"):
        other = reported({"verdict": undecided}, summary=known, summaries=own)
        assert waterfall(other, conclude(other).best) is None


def profile() -> dict[str, object]:
    """A step of 100 ms, of which the back end moves bytes for 5."""
    parts = {"all_reduce": 0.05, "communication": 0.05, "compute": 0.6}
    rows = [
        {"phase": "backward", "operation": name, "calls": 1.0, "ms": 100 * share, "share": share}
        for name, share in parts.items()
    ]
    shares = {"comm_share": 0.05, "wire_comm_share": 0.05}
    return {"step_ms": 100.0, "phase_ms": {"backward": 80.0}, "rows": rows, **shares}


TOTAL, CALLS = 100e6, (1, 4, 10, 50, 160)
STEPS = tuple(300 + calls * 0.5 + 100 / calls for calls in CALLS)


def bucketed(folder: Path, link: float | None = None, **more: object) -> ReportInput:
    arms = {}
    for calls, step in zip(CALLS, STEPS, strict=True):
        means = {"collectives": calls, "bytes_raw": TOTAL, "comm_transfer_ms": 50.0 + calls, "step_time_ms": step}
        summary = {"workers": 2, **{key: {"mean": each} for key, each in means.items()}, **more}
        config = {"sync.name": "ddp", "sync.bucket_mb": mib(TOTAL) / calls, "launch.link_gbps": link}
        arms[f"n{calls}"] = [Member("", "", summary, None, config)]
    return ReportInput(Run(folder), arms, question=question_named("sync"))


def test_what_the_back_end_moves_is_held_against_the_transfer_over_an_emulated_link(tmp_path: Path) -> None:
    """Of transfers of 51 ms and more, and only where buckets are asked about."""
    for link, profiled, moving in ((1.5, profile(), 5 / 51), (None, profile(), None), (1.5, None, None)):
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
    ("tokens", "squared", "needed"), [("FASTER", "SAME", None), ("SAME", "SAME", None), ("FASTER", "AMBIGUOUS", 124)]
)
def test_costs_are_told_from_the_one_that_lowers_p95_most_or_with_the_launches_that_it_would_take(
    reported: Reported, tokens: str, squared: str, needed: int | None
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
    verdicts = {"tokens": tokens, "squared": squared}
    assert {name: each.verdict for name, each in group.others.items()} == verdicts
    assert [*group.judged("SAME")] == [name for name, verdict in verdicts.items() if verdict == "SAME"]
    assert [each.launches_needed for each in group.undecided.values()] == [needed] * (needed is not None)
    speedups = {name: each.speedup for name, each in group.others.items()}
    assert speedups == pytest.approx({name: P95[name] / P95["attention"] for name in verdicts})
    for language in LANGUAGES:
        text = render_report(subject, language, "md", subject.run.path)
        line = next(line for line in text.splitlines() if line.startswith("- **`prefix`"))
        assert ("124" in line) == (needed == 124) and "`squared`" in line


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
    text = render_report(subject, "en", "md", subject.run.path).replace("\N{NO-BREAK SPACE}", " ")
    assert "| tokens | -13.33 % [-14.19, -12.46] |" in text
    assert "| squared | -13.30 % |" in text, "two launches are too few for an interval"
