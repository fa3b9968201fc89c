"""The rules that every registered strategy keeps, and proof that the judge would notice if one did not.

Two processes, started once, are the ranks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from strategy_jobs import (
    LARGEST_NORM,
    STEPS,
    memory_and_losses,
    named,
    train_run,
    watched_steps,
)
from toys import COMPRESSORS, STRATEGIES, TiedModel
from warm import RankError, WarmRanks

from dynbench.analysis.merge import merge_run
from dynbench.plugins import STRATEGIES as REGISTERED
from dynbench.runs.records import COMM_COLUMNS, TURN, read_columns
from dynbench.sync.replicated import Replicated

pytestmark = pytest.mark.multiproc

ALL = {**{name: entry.load() for name, entry in REGISTERED.items() if entry.exact and not entry.servers}, **STRATEGIES}
EXACT, ROUNDED = 1e-9, 0.02
COMPRESSED = {"none": EXACT, "two_stages": EXACT, "bf16": ROUNDED}
"""Compressor to the largest relative error of a gradient."""
SHARES = {"none": 1.0, "two_stages": 1.0, "bf16": 2 / 8}
"""Of the gradient's bytes, those that a ring of two sends."""
DURING_BACKWARD = ("overlap", "bucketed", "zero1")
"""They send something before all gradients are there, from the second step on, when unused parameters are known."""
GRADIENT_BYTES = sum(p.numel() for p in TiedModel().parameters() if p.requires_grad) * 8


def test_ranks_that_talk_in_every_forward_pass_are_planned_for_in_slots() -> None:
    for name, entry in REGISTERED.items():
        assert (entry.objective == "slots") == entry.load().collective_forward, name


def judge(steps: list[list[dict]], tolerance: float) -> None:
    """Every rule that holds for steps on all ranks, whatever the strategy; the first rank has the states."""
    assert [step["error"] for rank in steps[1:] for step in rank] == [None] * len(steps[0]) * (len(steps) - 1)
    for step in steps[0]:
        assert step["error"] < tolerance, "the mean gradient"
    for step in (step for rank in steps for step in rank):
        events = [event for event, _ in step["events"]]
        assert [n for event, n in step["events"] if event == "ready"] == [step["gradients"]], "ready once, at the end"
        assert events[-1] != "ready", "ready before the last gradient is sent"


def judge_bytes(steps: list[list[dict]], sync: str, compress: str) -> None:
    """The gradient goes over the wire once; what a strategy gathers besides comes on top."""
    for traffic in (step["traffic"] for rank in steps for step in rank):
        extra = traffic.bytes_raw - GRADIENT_BYTES
        gathered = sum(call.bytes_wire for call in traffic.calls if call.operation == "all_gather")  # of two ranks
        if not ALL[sync].equal_gradients:
            assert compress != "none" or 0 <= extra - gathered < 16, "filled up to equal shards"
        elif issubclass(ALL[sync], Replicated):
            assert extra == sum(p.requires_grad for p in TiedModel().parameters()), "which of them are used"
        else:
            assert extra == 0
        assert traffic.gradient_wire <= traffic.bytes_wire > 0 and traffic.gradient_raw >= GRADIENT_BYTES // 2
        assert compress != "none" or traffic.gradient_raw == traffic.gradient_wire, "nothing is compressed"
        assert 0 < traffic.busy_ms <= traffic.sum_ms + 1e-6


@pytest.mark.parametrize("compress", COMPRESSED)
@pytest.mark.parametrize("sync", ALL)
def test_gradients_are_those_of_the_whole_batch_in_one_process(ranks: WarmRanks, sync: str, compress: str) -> None:
    steps = ranks(watched_steps, sync, compress)
    judge(steps, COMPRESSED[compress])
    if sync in DURING_BACKWARD:
        assert all(step["events"][0][1] < step["gradients"] for rank in steps for step in rank[1:]), "sent early"
    judge_bytes(steps, sync, compress)
    for traffic in (step["traffic"] for rank in steps for step in rank if sync == "ddp"):
        assert traffic.gradient_raw == GRADIENT_BYTES, "of a ring of two"
        assert traffic.bytes_wire == pytest.approx(SHARES[compress] * GRADIENT_BYTES, rel=0.02)
        assert compress != "none" or {call.operation for call in traffic.calls} == {"all_reduce"}


@pytest.mark.parametrize("sync", ALL)
def test_without_a_wire_nothing_is_sent_and_every_rank_takes_its_own_gradient(ranks: WarmRanks, sync: str) -> None:
    """Torch's ZeRO-1 alone leaves the parts of others, which it broadcasts, as they were."""
    steps = ranks(watched_steps, sync, "none", True)
    for traffic in (step["traffic"] for rank in steps for step in rank):
        assert (traffic.calls, traffic.bytes_wire, traffic.busy_ms) == ([], 0, 0.0)
    if ALL[sync].equal_gradients and sync != "zero1_torch":
        assert max(step["error"] for step in steps[0]) < EXACT


def judge_norms(steps: list[list[dict]]) -> None:
    """The norm is that of the whole gradient on all ranks alike, and one that is too great is cut back to the most."""
    for step, *others in zip(*steps, strict=True):
        assert [other["grad_norm"] for other in others] == [pytest.approx(step["grad_norm"], rel=1e-12)] * len(others)
        assert step["clipped"] == (step["grad_norm"] > LARGEST_NORM)
        assert step["moved"] == pytest.approx(min(step["grad_norm"], LARGEST_NORM), rel=1e-4)
        assert step["error"] == pytest.approx(1 - min(1, LARGEST_NORM / step["grad_norm"]), abs=1e-4)
    assert {step["clipped"] for step in steps[0]} == {0, 1}


@pytest.mark.parametrize("sync", ALL)
def test_gradients_are_clipped_by_the_norm_over_all_shards(ranks: WarmRanks, sync: str) -> None:
    judge_norms(ranks(watched_steps, sync, "none", False, True))


@pytest.mark.parametrize(
    ("sync", "compress", "rule"),
    [
        ("ready_late", "none", "ready before the last gradient is sent"),
        ("forgets_micro_batches", "none", "the mean gradient"),
        ("ddp", "forgets_to_divide", "the mean gradient"),
    ],
)
def test_what_is_wrong_is_caught(ranks: WarmRanks, sync: str, compress: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        judge(ranks(watched_steps, sync, compress), ROUNDED)


def test_the_norm_of_a_shard_is_caught(ranks: WarmRanks) -> None:
    with pytest.raises(AssertionError):
        judge_norms(ranks(watched_steps, "norm_of_a_shard", "none", False, True))


@pytest.mark.parametrize("sync", [name for name, entry in REGISTERED.items() if not entry.servers and entry.trains])
def test_without_communication_a_rank_holds_and_steps_what_it_does_with_it(
    ranks: WarmRanks, tmp_path: Path, sync: str
) -> None:
    """So that a step with it takes more by the communication alone; what nobody sent is finite."""
    beside, without = (ranks(memory_and_losses, str(tmp_path), sync, null) for null in (False, True))
    for (memory, _), (alone, losses) in zip(beside, without, strict=True):
        assert alone == {kind: pytest.approx(size) for kind, size in memory.items()}
        assert np.isfinite(losses).all()


@pytest.mark.parametrize(
    ("sync", "compress", "null"),
    [
        ("fsdp", "two_stages", False),
        ("one_by_one", "none", False),
        ("ddp", "none", True),
        ("flat", "none", False),
        ("zero1", "two_stages", False),
    ],
)
def test_a_run_trains_with_uneven_micro_batches_and_evaluations(
    ranks: WarmRanks, new_run, sync: str, compress: str, null: bool
) -> None:
    run, config = new_run("launch.nproc=2")
    ranks(train_run, str(run.path), named(config, sync, compress, null))
    merged = merge_run(run)
    rows = pl.read_parquet(run.path / "merged_metrics.parquet").sort("step", "rank")
    assert rows["micro_batches"].to_list() == [1 + (step + rank) % 3 for step in range(STEPS) for rank in (0, 1)]
    assert rows["loss"].is_finite().all() and (rows["bytes_raw"] > 0).all()
    assert rows["weight"].to_list() == rows["local_batch"].to_list()
    assert (rows["bytes_wire"] > 0).all() == (rows["comm_ms"] > 0).all() == (not null)
    assert merged.evaluations.is_empty() == null, "what ranks that sent nothing hold is not one model"
    assert null or merged.evaluations.select("step", "samples").rows() == [(1, 9), (3, 9)]
    made = (*ALL[sync].columns, *getattr(COMPRESSORS.get(compress), "columns", ()))
    added = {column.name for column in made} | ({"repeated_micro_batches"} if ALL[sync].collective_forward else set())
    assert set(read_columns(run.ranks_dir)) == {TURN.name, *(column.name for column in COMM_COLUMNS), *added}
    assert all(rows[name].null_count() == 0 for name in added)
    if sync == "flat":
        assert (rows["flatten_ms"] + rows["unflatten_ms"] < rows["sync_ms"]).all() and (rows["unflatten_ms"] > 0).all()
    if sync == "one_by_one":
        assert (rows["sent_tensors"] > 1).all()
    if ALL[sync].collective_forward:
        most = rows.group_by("step").agg(pl.col("micro_batches").max()).sort("step")["micro_batches"]
        ran = rows["micro_batches"] + rows["repeated_micro_batches"]
        assert ran.to_list() == [count for count in most for _ in (0, 1)] != rows["micro_batches"].to_list()
    if compress == "two_stages":
        assert rows["told_weight"].to_list() == rows["weight"].to_list()


def test_an_exception_in_a_compressor_ends_all_ranks_and_is_told_itself(ranks: WarmRanks, new_run) -> None:
    run, config = new_run("launch.nproc=2")
    with pytest.raises(RankError) as ended:
        ranks(train_run, str(run.path), named(config, "ddp", "fails"))
    assert set(ended.value.errors) == {0, 1}
    assert "ArithmeticError: cannot compress" in ended.value.errors[0].splitlines()[-1]


@pytest.mark.parametrize("name", REGISTERED)
def test_a_strategy_adds_columns_of_other_names_than_the_wire(name: str) -> None:
    made = REGISTERED[name].load()
    names = [column.name for column in (*made.columns, *COMM_COLUMNS)]
    assert len(set(names)) == len(names)
