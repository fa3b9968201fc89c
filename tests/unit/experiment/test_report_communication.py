"""What a report says of servers, of profiled steps and of the size of buckets, from made-up summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from compared import compared

from dynbench.analysis.profile import bottlenecks
from dynbench.analysis.questions import question_named
from dynbench.analysis.record import ComparisonRecord, PairRecord, ScalingRecord
from dynbench.experiment.report_facts import (
    buckets_of,
    communication_facts,
    exposures,
    order_of,
    served_arms,
    training_s,
)
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.experiment.reporting import NEEDED
from dynbench.runs.run import Run

RATES = {"ddp": 900.0, "by_hand": 600.0, "ps": 300.0, "ps_1w": 200.0}
RANKS = {"ddp": (2, 2), "by_hand": (2, 2), "ps": (2, 3), "ps_1w": (1, 2)}


def profile(comm: float, compute: float) -> dict[str, object]:
    rows = [
        {"phase": "backward", "operation": "all_reduce", "calls": 1.0, "ms": 100 * comm, "share": comm},
        {"phase": "backward", "operation": "communication", "calls": 1.0, "ms": 100 * comm, "share": comm},
        {"phase": "backward", "operation": "compute", "calls": 9.0, "ms": 100 * compute, "share": compute},
    ]
    phases = {"backward": 80.0}
    return {"step_ms": 100.0, "comm_share": comm, "wire_comm_share": comm, "phase_ms": phases, "rows": rows}


def member(name: str, rate: float, **more: object) -> Member:
    workers, world_size = RANKS[name]
    timed = {
        "workers": {"push_ms": 10.0, "pull_ms": 20.0},
        "servers": {"receive_ms": 11.0, "average_ms": 3.0, "optimizer_ms": 4.0, "send_ms": 12.0},
    }
    summary = {
        "workers": workers,
        "world_size": world_size,
        "launcher": "torchrun",
        "throughput_samples_per_s": {"mean": rate},
        "step_time_ms": {"mean": 48000 / rate},
        "comm_ms": {"mean": 20.0},
        "bytes_wire": {"mean": 4e6},
        "exposed_comm_ms": {"mean": 15.0},
        "time_ms": {"compute": 30.0},
        "timed_ms": timed if world_size != workers else {"workers": {}, "servers": {}},
        "epochs": {"each": [{"train_s": 2.0, "eval_loss": 0.9, "eval_accuracy": 0.4}] * 2},
        "profile": profile(0.3, 0.6),
        **more,
    }
    return Member(name, name, summary, None)


def scaled(arm: str, step_ms: float) -> ScalingRecord:
    workers, world_size = RANKS[arm]
    return ScalingRecord(
        arm=arm, strategy="ps" if world_size > workers else arm, kind="reference", against=arm, workers=workers,
        world_size=world_size, global_batch=48, units_per_s=1.0, speedup=1.0, efficiency=1.0, efficiency_of_ranks=1.0,
        step_ms=step_ms, comm_ms=step_ms / 2,
    )  # fmt: skip


def subject(tmp_path: Path, arms: Sequence[str] = tuple(RATES), **more: dict[str, object]) -> ReportInput:
    members = {name: [member(name, RATES[name], **more.get(name, {}))] for name in arms}
    scaling = [scaled(name, 48000 / RATES[name]) for name in arms]
    return ReportInput(Run(tmp_path), members, scaling=scaling)


def test_without_a_server_there_are_no_steps(tmp_path: Path) -> None:
    found = subject(tmp_path, ("ddp", "by_hand"))
    assert served_arms(found) == []


def against(verdict: str, baseline: str, candidate: str) -> PairRecord:
    found = compared(verdict=verdict, baseline=baseline, candidate=candidate)
    return PairRecord.model_validate(found.model_dump())


@pytest.mark.parametrize(
    ("verdicts", "against_it", "untold"),
    [
        (("SLOWER", "SLOWER", "SLOWER"), [], []),
        (("SLOWER", "SLOWER", "FASTER"), [("by_hand", "ps")], []),
        (("SLOWER", "SLOWER", "AMBIGUOUS"), [], [("by_hand", "ps")]),
        (("SAME", "SLOWER", "SLOWER"), [], [("ddp", "by_hand")]),
        (("ESTIMATE", "ESTIMATE", "ESTIMATE"), [], [("ddp", "by_hand"), ("ddp", "ps"), ("by_hand", "ps")]),
    ],
)
def test_the_order_holds_only_where_every_verdict_says_so(
    tmp_path: Path, verdicts: Sequence[str], against_it: list[object], untold: list[object]
) -> None:
    """Only arms with as many workers count, so `ps_1w` does not."""
    couples = (("ddp", "by_hand"), ("ddp", "ps"), ("by_hand", "ps"))
    pairs = [against(verdict, *couple) for verdict, couple in zip(verdicts, couples, strict=True)]
    found = replace(subject(tmp_path), pairs=[*pairs, against("FASTER", "ddp", "ps_1w")])
    order = order_of(found)
    assert order is not None and order.expected == ["ddp", "by_hand", "ps"]
    assert (order.against, order.untold) == (against_it, untold)


def test_how_long_the_epochs_took_is_told_of_arms_that_had_some(tmp_path: Path) -> None:
    found = subject(tmp_path, ("ddp", "ps"), ps={"epochs": None})
    assert training_s(found) == {"ddp": 4.0}


@pytest.mark.parametrize(("comm", "compute", "is_communication"), [(0.3, 0.6, False), (0.7, 0.2, True)])
def test_a_bottleneck_is_what_takes_more_of_the_step(
    tmp_path: Path, comm: float, compute: float, is_communication: bool
) -> None:
    found = subject(tmp_path, ("ddp",), ddp={"profile": profile(comm, compute)})
    (one,) = bottlenecks(found.launches)
    assert (one.share, one.is_communication) == (comm, is_communication)
    profiled = communication_facts(found)["profiled"]
    bound = {"communication": ["ddp"], "computing": []}
    assert profiled == (bound if is_communication else dict(zip(bound, reversed(bound.values()), strict=True)))


@pytest.mark.parametrize("chapter", ["profile", "server", "growth"])
def test_a_chapter_stands_only_where_there_is_something_to_say(tmp_path: Path, chapter: str) -> None:
    assert NEEDED[chapter](subject(tmp_path))
    assert not NEEDED[chapter](subject(tmp_path, ("ddp",), ddp={"profile": None}))


def test_a_step_is_held_against_one_without_communication_where_that_was_measured(tmp_path: Path) -> None:
    parts = {"exposed_ms": 5.0, "sync_ms": 3.0, "compute_ms": 2.0, "optimizer_ms": 0.5, "other_ms": -0.5}
    found = subject(tmp_path, ("ddp", "ps"), ddp={"against_null": parts})
    assert exposures(found) == {"ddp": {"null": 5.0, "more": 3.0, "compute": 2.0, "optimizer": 0.5, "other": -0.5}}
    assert exposures(subject(tmp_path)) == {}


TOTAL, CALLS = 100e6, (1, 4, 10, 50, 160)
GOOD = tuple(calls * 0.5 + TOTAL / calls / 1e6 for calls in CALLS)


def bucketed(folder: Path, overheads: tuple[float, ...], compute: float = 50.0) -> ReportInput:
    arms = {}
    for calls, overhead in zip(CALLS, overheads, strict=True):
        times = {"step_time_ms": 300 + overhead, "exposed_vs_null_ms": overhead, "exposed_comm_ms": overhead}
        means = {"collectives": calls, "bytes_raw": TOTAL, "comm_transfer_ms": 50.0, **times}
        summary = {
            "workers": 2,
            "time_ms": {"compute": compute},
            **{key: {"mean": each} for key, each in means.items()},
        }
        arms[f"n{calls}"] = [Member("", "", summary, None, {"sync.name": "ddp", "sync.bucket_mb": 100 / calls})]
    return ReportInput(Run(folder), arms, question=question_named("sync"))


@pytest.mark.parametrize(
    ("compute", "overheads", "case"),
    [
        (50.0, GOOD, "best"),
        (50.0, (30.0, 5.0, 60.0, 4.0, 45.0), "poor"),
        (50.0, (9.0,) * 5, "alike_overheads"),
        (200.0, GOOD, "computing"),
        (10.0, GOOD, "sending"),
        (50.0, (3.0, 4.0, 5.5, 25.0, 80.0), "contradicted"),
    ],
)
def test_a_best_size_is_named_only_where_the_model_explains_and_the_arms_bear_it_out(
    tmp_path: Path, compute: float, overheads: tuple[float, ...], case: str
) -> None:
    """Not where computing is not as long as sending, nor where one bucket beats the four nearest to the best size."""
    found = buckets_of(bucketed(tmp_path, overheads, compute))
    assert found is not None and found.case == case and (found.case == "best") <= found.fit.explains


def test_the_best_size_is_that_of_the_model(tmp_path: Path) -> None:
    found = buckets_of(bucketed(tmp_path, GOOD))
    assert found is not None and found.near is not None and found.fit.r_squared == pytest.approx(1)
    assert (found.fit.total, found.fit.call_ms, found.fit.bytes_per_ms) == pytest.approx((TOTAL, 0.5, 1e6))
    assert found.fit.best_bytes == pytest.approx((TOTAL * 0.5 * 1e6) ** 0.5)
    assert found.near.arm == "n10" and found.near_ms == pytest.approx(found.near.overhead_ms)


def test_arms_that_launches_do_not_tell_from_the_fastest_are_named(tmp_path: Path) -> None:
    """Of the arms, `n10` is fastest; it is told from the baseline `n1`, and from `n160`."""
    judged = {"reason": "", "level": "step", "speedup": 1.1, "ci95": None, "launches": 2, "same_work": True}
    told = [
        ComparisonRecord(baseline="n1", candidate=name, verdict=verdict, **judged)  # type: ignore[arg-type]  # as read
        for name, verdict in (("n10", "FASTER"), ("n4", "AMBIGUOUS"))
    ]
    pair = PairRecord(baseline="n10", candidate="n160", verdict="SLOWER", **judged)  # type: ignore[arg-type]  # as read
    found = buckets_of(replace(bucketed(tmp_path, GOOD), comparisons=told, pairs=[pair]))
    assert found is not None and found.untold == ["n4", "n50"]
