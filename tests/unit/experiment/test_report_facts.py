"""What a report says of the arms: predictions, the time beyond the ideal, communication, and the size of buckets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from languages import facts
from unit.experiment.conftest import Reported

from dynbench.analysis.profile import bottlenecks
from dynbench.analysis.questions import question_named
from dynbench.analysis.record import ComparisonRecord, PairRecord
from dynbench.analysis.waste import PARTS
from dynbench.experiment.offline_plans import Solved, planned_speedup
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_facts import buckets_of, communication_facts, exposures, waterfall
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.experiment.reporting import NEEDED
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.units import mib


def predicted(subject: ReportInput, **costs: float) -> list[Any]:
    """What is predicted where plans of arms have these costs per token."""
    sizes = {"world_size": 2, "global_batch": 64, "exact": "both", "policy": "static", "cost_type": "tokens"}
    lines = [{"arm": name, "cost_per_token": cost, **sizes} for name, cost in costs.items()]
    write_json(subject.run.path / "solve.json", {"run": "s", "results": lines})
    return list(facts(subject)["predictions"])


def test_predicted_against_achieved_takes_probe_and_plans(reported: Reported) -> None:
    probed = {"candidate": "probed", "speedup": 1.2, "predicted_speedup": 1.5, "bound_speedup": 2.25}
    subject = reported(probed, {"candidate": "planned", "speedup": 1.5}, {"candidate": "neither"})

    found = predicted(subject, static=3.0, planned=1.5)
    assert [each.by for each in found] == ["probe", "plan", None]
    assert [each.predicted for each in found] == [1.5, 2.0, None]
    assert [each.reached for each in found[:2]] == pytest.approx([0.8, 0.75])


def test_plans_predict_nothing_where_arms_have_other_samples_in_a_step(reported: Reported) -> None:
    """Warm-up is planned too, of samples of its own: a plan promised 2.133 where 1.488 was achieved."""
    levels = ("step", "window", "stream", "tokens")
    subject = reported(*({"candidate": level, "level": level} for level in levels))

    found = predicted(subject, static=3.0, **dict.fromkeys(levels, 1.5))
    assert [each.predicted for each in found] == [2.0, 2.0, None, None]


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
def test_costs_in_another_unit_predict_no_time(
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


KNOWN = {"waste": waste(2.0, 0.25), "step_time_ms": {"total": 400.0}, "real_tokens": 2000}
BETTER = waste(1.6, 0.125), 320.0
WORSE = waste(3.0, 0.1, exposed_comm=22 / 60), 600.0
"""Waste of a candidate and its time, ms; the worse one waits for 10 ms less, and exposes more communication."""


@pytest.mark.parametrize(
    ("verdict", "candidate", "told"),
    [
        ("FASTER", BETTER, (True, "waiting", 200, 160, 30, 60)),
        ("SLOWER", WORSE, (False, "exposed_comm", 200, 300, 100, 200)),
        ("AMBIGUOUS", BETTER, None),
        ("AMBIGUOUS", WORSE, None),
        ("SAME", BETTER, None),
        ("SLOWER", BETTER, None),
    ],
)
def test_what_the_best_candidate_gave_back_or_took_is_told_where_verdict_and_parts_agree(
    reported: Reported, verdict: str, candidate: tuple[dict[str, object], float], told: tuple[object, ...] | None
) -> None:
    of_arm, total = candidate
    own = {"partition": {"waste": of_arm, "step_time_ms": {"total": total}}}
    subject = reported({"candidate": "partition", "verdict": verdict}, summary=KNOWN, summaries=own)
    fall = waterfall(subject, conclude(subject).best)
    if told is None or fall is None:
        assert fall is told
        return
    assert (fall.faster, fall.part) == told[:2]
    assert (fall.before, fall.after, fall.change, fall.left) == pytest.approx(told[2:])


def profile(comm: float, compute: float) -> dict[str, object]:
    shares = {"all_reduce": comm, "communication": comm, "compute": compute}
    rows = [
        {"phase": "backward", "operation": name, "calls": 1.0, "ms": 100 * share, "share": share}
        for name, share in shares.items()
    ]
    phases = {"backward": 80.0}
    return {"step_ms": 100.0, "comm_share": comm, "wire_comm_share": comm, "phase_ms": phases, "rows": rows}


def subject(folder: Path, **arms: dict[str, object]) -> ReportInput:
    """Arms of a launch of two workers, with what their summaries say besides."""
    known = {"workers": 2, "world_size": 2, "launcher": "torchrun", "step_time_ms": {"mean": 80.0}}
    members = {name: [Member(name, name, {**known, **more}, None)] for name, more in arms.items()}
    return ReportInput(Run(folder), members)


@pytest.mark.parametrize(("comm", "compute", "bound"), [(0.3, 0.6, "computing"), (0.7, 0.2, "communication")])
def test_a_bottleneck_is_what_takes_more_of_the_step_and_has_a_chapter_where_it_is_known(
    tmp_path: Path, comm: float, compute: float, bound: str
) -> None:
    found = subject(tmp_path, ddp={"profile": profile(comm, compute)})
    (one,) = bottlenecks(found.launches)
    assert (one.share, one.is_communication) == (comm, bound == "communication")
    nobody = {"communication": [], "computing": []}
    assert communication_facts(found)["profiled"] == nobody | {bound: ["ddp"]}
    assert NEEDED["profile"](found) and not NEEDED["profile"](subject(tmp_path, ddp={"profile": None}))


def test_a_step_is_held_against_one_without_communication_where_that_was_measured(tmp_path: Path) -> None:
    parts = {"exposed_ms": 5.0, "sync_ms": 3.0, "compute_ms": 2.0, "optimizer_ms": 0.5, "other_ms": -0.5}
    told = {"null": 5.0, "more": 3.0, "compute": 2.0, "optimizer": 0.5, "other": -0.5}
    assert exposures(subject(tmp_path, ddp={"against_null": parts}, ps={})) == {"ddp": told}


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


def test_the_best_size_is_that_of_the_model_and_told_of_arms_that_ask_for_it(tmp_path: Path) -> None:
    found = buckets_of(bucketed(tmp_path))
    assert found is not None and found.near is not None and found.fit.case == "best"
    assert found.fit.best_bytes == pytest.approx(TOTAL / 200**0.5)
    assert (found.near.arm, found.least.arm) == ("n10", "n10")
    assert buckets_of(replace(bucketed(tmp_path), question=question_named("precision"))) is None


def test_what_the_back_end_moves_is_held_against_the_transfer_over_an_emulated_link(tmp_path: Path) -> None:
    """5 ms of a profiled step, of transfers of 51 ms and more."""
    shares = [
        None if found is None or found.moving is None else found.moving
        for found in (
            buckets_of(bucketed(tmp_path, link=1.5, profile=profile(0.05, 0.6))),
            buckets_of(bucketed(tmp_path, profile=profile(0.05, 0.6))),
            buckets_of(bucketed(tmp_path, link=1.5)),
        )
    ]
    assert shares == [pytest.approx(5 / 51), None, None]


def test_arms_that_launches_do_not_tell_from_the_fastest_are_named(tmp_path: Path) -> None:
    """Of the arms, `n10` is fastest; it is told from the baseline `n1`, and from `n160`."""
    judged = {"reason": "", "level": "step", "speedup": 1.1, "ci95": None, "launches": 2, "same_work": True}
    told = [
        ComparisonRecord(baseline="n1", candidate=name, verdict=verdict, **judged)  # type: ignore[arg-type]  # as read
        for name, verdict in (("n10", "FASTER"), ("n4", "AMBIGUOUS"))
    ]
    pair = PairRecord(baseline="n10", candidate="n160", verdict="SLOWER", **judged)  # type: ignore[arg-type]  # as read
    found = buckets_of(replace(bucketed(tmp_path), comparisons=told, pairs=[pair]))
    assert found is not None and found.undecided == ["n4", "n50"]
