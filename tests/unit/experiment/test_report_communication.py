"""What a report says of servers and of profiled steps, from made-up summaries, in both languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from compared import compared
from languages import english_sentences

from dynbench.analysis.profile import bottlenecks
from dynbench.analysis.record import PairRecord, ScalingRecord
from dynbench.experiment import report_communication
from dynbench.experiment.report_communication import exposures
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.experiment.reporting import NEEDED
from dynbench.report import LANGUAGES, load_template, substitute
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


def table(found: ReportInput, name: str) -> str:
    return report_tables(Sources(found, None, load_template("en"), found.run.path))[f"table.{name}"]


def texts(found: ReportInput, block: str, language: str = "en") -> str:
    """`{{ say.BLOCK }}` of the servers' and profiles' facts."""
    template = load_template(language)
    marked = {name: f"`{name}`" for name in found.arms}
    known = {**report_communication.communication_facts(found), "marked": marked, "baseline.name": "`ddp`"}
    return substitute(template, f"{{{{ say.{block} }}}}", known)


def test_the_six_steps_of_a_batch_with_their_code_and_times(tmp_path: Path) -> None:
    found = subject(tmp_path)
    lines = table(found, "server_steps").splitlines()
    assert len(lines) == 8 and "ps (ms)" in lines[0] and "ps_1w (ms)" in lines[0] and "ddp" not in lines[0]
    times = [[cell.strip() for cell in line.split("|")][5] for line in lines[2:]]
    assert times == ["30", "10", "11", "3", "4", "12 / 20"]


def test_without_a_server_there_are_no_steps(tmp_path: Path) -> None:
    found = subject(tmp_path, ("ddp", "by_hand"))
    assert table(found, "server_steps") == table(found, "growth") == ""
    assert report_communication.served_arms(found) == []


def test_servers_stand_beside_all_reduce_at_equal_workers_and_processes(tmp_path: Path) -> None:
    rows = table(subject(tmp_path), "growth").splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert [(row[0], row[1], row[2].split(":")[0], row[3].split(":")[0]) for row in cells] == [
        ("workers", "2", "`ddp`", "`ps`"),
        ("workers", "2", "`by_hand`", "`ps`"),
        ("processes", "2", "`ddp`", "`ps_1w`"),
        ("processes", "2", "`by_hand`", "`ps_1w`"),
    ]
    assert [row[4] for row in cells] == ["3.000", "2.000", "4.500", "3.000"]


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
    order = report_communication.order_of(found)
    assert order is not None and order.expected == ["ddp", "by_hand", "ps"]
    assert (order.against, order.untold) == (against_it, untold)


def test_how_long_the_epochs_took_is_told_of_arms_that_had_some(tmp_path: Path) -> None:
    found = subject(tmp_path, ("ddp", "ps"), ps={"epochs": None})
    assert report_communication.training_s(found) == {"ddp": 4.0}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_sentence_is_in_the_language_of_the_report(tmp_path: Path, language: str) -> None:
    blocks = ("server", "outcomes", "order_found", "bottleneck")
    said = [texts(subject(tmp_path), block, language) for block in blocks]
    assert all(text and "{{" not in text and "None" not in text for text in said)
    if language != "en":
        assert [english_sentences(text) for text in said if english_sentences(text)] == []


@pytest.mark.parametrize(("comm", "compute", "is_communication"), [(0.3, 0.6, False), (0.7, 0.2, True)])
def test_a_bottleneck_is_what_takes_more_of_the_step(
    tmp_path: Path, comm: float, compute: float, is_communication: bool
) -> None:
    found = subject(tmp_path, ("ddp",), ddp={"profile": profile(comm, compute)})
    (one,) = bottlenecks(found.launches)
    assert (one.share, one.is_communication) == (comm, is_communication)
    profiled = report_communication.communication_facts(found)["profiled"]
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
    assert "--exposed" not in texts(found, "exposed") and "--exposed" in texts(subject(tmp_path), "exposed")
