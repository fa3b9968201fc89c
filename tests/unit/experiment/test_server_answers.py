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
from dynbench.experiment import report_communication, report_server
from dynbench.experiment.report_communication import exposures, launches_of, why_not_exposed
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.experiment.subject import Member, Subject
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


def subject(tmp_path: Path, arms: Sequence[str] = tuple(RATES), **more: dict[str, object]) -> Subject:
    members = {name: [member(name, RATES[name], **more.get(name, {}))] for name in arms}
    scaling = [scaled(name, 48000 / RATES[name]) for name in arms]
    return Subject(Run(tmp_path), members, scaling=scaling)


def table(found: Subject, name: str) -> str:
    return report_tables(Sources(found, None, load_template("en"), found.run.path))[f"table.{name}"]


def texts(found: Subject, block: str, language: str = "en") -> str:
    """`{{ say.BLOCK }}` of the servers' and profiles' facts."""
    template = load_template(language)
    marked = {name: f"`{name}`" for name in found.arms}
    known = {
        **report_server.facts(found),
        **report_communication.profile_facts(found),
        "marked": marked,
        "baseline.name": "`ddp`",
    }
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
    assert report_server.served_arms(found) == []


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
    """The throughputs come in that order in all cases; only arms with as many workers count, so `ps_1w` does not."""
    couples = (("ddp", "by_hand"), ("ddp", "ps"), ("by_hand", "ps"))
    pairs = [against(verdict, *couple) for verdict, couple in zip(verdicts, couples, strict=True)]
    found = replace(subject(tmp_path), pairs=[*pairs, against("FASTER", "ddp", "ps_1w")])
    order = report_server.order_of(found)
    assert order is not None and order.expected == order.found == ["ddp", "by_hand", "ps"]
    assert (order.against, order.untold) == (against_it, untold)


def test_what_communication_costs_and_what_came_of_the_epochs(tmp_path: Path) -> None:
    found = subject(tmp_path, ("ddp", "ps"), ps={"comm_ms": {}, "epochs": None})
    costs = report_server.communication_costs(found)
    assert {kind: told["ddp"] for kind, told in costs.items()} == pytest.approx(
        {"time": 20.0, "share": 0.375, "exposed": 15.0, "bytes": 4.0, "speed": 0.2}
    )
    assert {kind: told["ps"] for kind, told in costs.items() if "ps" in told} == {"exposed": 15.0, "bytes": 4.0}
    outcomes = report_server.outcomes(found)
    assert outcomes == {
        "throughput": {"ddp": (900.0, None), "ps": (300.0, None)}, "training": {"ddp": 4.0}, "loss": {"ddp": (0.9, 0.4)}
    }  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_sentence_is_in_the_language_of_the_report(tmp_path: Path, language: str) -> None:
    blocks = ("server", "costs", "outcomes", "order_found", "growth", "bottleneck")
    said = [texts(subject(tmp_path), block, language) for block in blocks]
    assert all(text and "{{" not in text and "None" not in text for text in said)
    if language != "en":
        assert [english_sentences(text) for text in said if english_sentences(text)] == []


@pytest.mark.parametrize(("comm", "compute", "is_communication"), [(0.3, 0.6, False), (0.7, 0.2, True)])
def test_a_bottleneck_is_what_takes_more_of_the_step(
    tmp_path: Path, comm: float, compute: float, is_communication: bool
) -> None:
    found = subject(tmp_path, ("ddp",), ddp={"profile": profile(comm, compute)})
    (one,) = bottlenecks(launches_of(found))
    assert (one.share, one.of_backward, one.is_communication) == (comm, pytest.approx(comm / 0.8), is_communication)
    assert ("is the bottleneck of `ddp`" in texts(found, "bottleneck")) == is_communication


def test_without_a_profile_the_report_says_how_to_have_one(tmp_path: Path) -> None:
    found = subject(tmp_path, ("ddp",), ddp={"profile": None})
    assert "`train.profile_steps`" in texts(found, "bottleneck")
    assert table(found, "profile") == ""


@pytest.mark.parametrize(
    ("arms", "launcher", "why"),
    [
        (("ddp", "ps"), "torchrun", "unknown"),
        (("ps", "ps_1w"), "torchrun", "served"),
        (("ddp",), "virtual", "virtual"),
    ],
)
def test_turns_without_communication_are_advised_only_where_they_can_be(
    tmp_path: Path, arms: tuple[str, ...], launcher: str, why: str
) -> None:
    found = subject(tmp_path, arms, **{name: {"launcher": launcher} for name in arms})
    assert why_not_exposed(found) == why and list(exposures(found)) == []
