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
from toys import STRATEGIES, TiedModel
from warm import RankError, WarmRanks

from dynbench.analysis.merge import merge_run
from dynbench.engine.failure import root_cause
from dynbench.errors import WorkerFailed
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
MEAN = "the mean gradient"
GRADIENT_BYTES = sum(p.numel() for p in TiedModel().parameters() if p.requires_grad) * 8


def test_ranks_that_talk_in_every_forward_pass_are_planned_for_in_slots() -> None:
    for name, entry in REGISTERED.items():
        assert (entry.objective == "slots") == entry.load().collective_forward, name


def judge(steps: list[list[dict]], tolerance: float) -> None:
    """Every rule that holds for steps on all ranks, whatever the strategy; the first rank has the states."""
    assert [step["error"] for rank in steps[1:] for step in rank] == [None] * len(steps[0]) * (len(steps) - 1)
    for step in steps[0]:
        assert step["error"] < tolerance, MEAN
    for rank in steps:
        for step in rank:
            assert step["gradients_at_ready"] == [step["expected_gradients"]], "ready once, when all gradients are"
            sent = [i for i, event in enumerate(step["events"]) if event != "ready"]
            assert sent and sent[-1] > step["events"].index("ready"), "ready before the last gradient is sent"


def judge_bytes(steps: list[list[dict]], sync: str, compress: str, null: bool) -> None:
    """The gradient goes over the wire once; what a strategy gathers besides comes on top."""
    for traffic in (step["traffic"] for rank in steps for step in rank):
        extra = traffic.bytes_raw - GRADIENT_BYTES
        gathered = sum(call.bytes_wire for call in traffic.calls if call.operation == "all_gather")  # of two ranks
        if not ALL[sync].equal_gradients:
            assert null or compress != "none" or 0 <= extra - gathered < 16, "filled up to equal shards"
        elif issubclass(ALL[sync], Replicated):
            assert extra == sum(p.requires_grad for p in TiedModel().parameters()), "which of them are used"
        else:
            assert extra == 0
        if null:
            assert (traffic.calls, traffic.bytes_wire, traffic.busy_ms) == ([], 0, 0.0)
            continue
        assert traffic.gradient_wire <= traffic.bytes_wire and traffic.gradient_raw >= GRADIENT_BYTES // 2
        if compress == "none":
            assert traffic.gradient_raw == traffic.gradient_wire, "nothing is compressed"
        assert traffic.bytes_wire > 0
        assert 0 < traffic.busy_ms <= traffic.sum_ms + 1e-6


@pytest.mark.parametrize("compress", COMPRESSED)
@pytest.mark.parametrize("sync", ALL)
def test_gradients_are_those_of_the_whole_batch_in_one_process(ranks: WarmRanks, sync: str, compress: str) -> None:
    steps = ranks(watched_steps, sync, compress, False)
    judge(steps, COMPRESSED[compress])
    judge_bytes(steps, sync, compress, null=False)
    for traffic in (step["traffic"] for rank in steps for step in rank if sync == "ddp"):
        assert traffic.gradient_raw == GRADIENT_BYTES, "of a ring of two"
        assert traffic.bytes_wire == pytest.approx(SHARES[compress] * GRADIENT_BYTES, rel=0.01)
        assert compress != "none" or {call.operation for call in traffic.calls} == {"all_reduce"}


@pytest.mark.parametrize("sync", ALL)
def test_without_a_wire_nothing_is_sent_and_every_rank_takes_its_own_gradient(ranks: WarmRanks, sync: str) -> None:
    """Torch's ZeRO-1 alone leaves the parts of others, which it broadcasts, as they were."""
    steps = ranks(watched_steps, sync, "none", True)
    judge_bytes(steps, sync, "none", null=True)
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
    judge_norms(ranks(watched_steps, sync, "none", False, None, True))


def test_the_norm_of_a_shard_is_caught(ranks: WarmRanks) -> None:
    with pytest.raises(AssertionError):
        judge_norms(ranks(watched_steps, "norm_of_a_shard", "none", False, None, True))


@pytest.mark.parametrize(
    ("sync", "compress", "fault", "rule"),
    [
        ("ready_late", "none", None, "ready before the last gradient is sent"),
        ("ready_early", "none", None, "ready once, when all gradients are"),
        ("forgets_micro_batches", "none", None, MEAN),
        ("ddp", "forgets_to_divide", None, MEAN),
        ("ddp", "none", "counts", MEAN),
        ("ddp", "none", "means", MEAN),
        ("fsdp", "none", "counts", MEAN),
        ("fsdp", "none", "repeats", MEAN),
    ],
)
def test_what_is_wrong_is_caught(ranks: WarmRanks, sync: str, compress: str, fault: str | None, rule: str) -> None:
    """Strategies, a compressor and weights."""
    with pytest.raises(AssertionError, match=rule):
        judge(ranks(watched_steps, sync, compress, False, fault), ROUNDED)


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
        ("one_by_one", "bf16", False),
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
    merged = pl.read_parquet(merge_run(run).run.path / "merged_metrics.parquet").sort("step", "rank")
    assert merged.height == 2 * STEPS
    assert merged["micro_batches"].to_list() == [1 + (step + rank) % 3 for step in range(STEPS) for rank in (0, 1)]
    assert merged["loss"].is_finite().all()
    assert merged["weight"].to_list() == merged["local_batch"].to_list()
    assert merged["bytes_raw"].dtype == pl.Int64
    assert (merged["bytes_raw"] > 0).all()
    assert (merged["bytes_wire"] > 0).all() != null
    assert (merged["comm_ms"] > 0).all() != null
    assert (run.path / "eval.csv").exists() != null, "what ranks that sent nothing hold is not one model"
    evaluations = [] if null else (run.path / "eval.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in evaluations] == ([] if null else ["1", "3"])
    assert {line.split(",")[-1] for line in evaluations} == (set() if null else {"9"})
    declared = read_columns(run.ranks_dir)
    common = [column.name for column in (TURN, *COMM_COLUMNS)]
    assert list(declared)[: len(common)] == common
    if ALL[sync].collective_forward:
        most = merged.group_by("step").agg(pl.col("micro_batches").max()).sort("step")["micro_batches"]
        ran = merged.with_columns(ran=pl.col("micro_batches") + pl.col("repeated_micro_batches"))
        assert ran["ran"].to_list() == [count for count in most for _ in (0, 1)]
        assert merged["repeated_micro_batches"].sum() > 0
    if compress == "two_stages":
        assert declared["compressed"].type == "integer"
        assert merged["compressed"].dtype == pl.Int64
        assert merged["told_weight"].to_list() == merged["weight"].to_list()
        assert (merged.filter(rank=0)["compressed"].diff().drop_nulls() > 0).all()
    if sync == "flat":
        assert (merged["flatten_ms"] + merged["unflatten_ms"] < merged["sync_ms"]).all()
        assert (merged["unflatten_ms"] > 0).all()
    if sync == "one_by_one":
        assert merged["sent_tensors"].dtype == pl.Int64
        assert (merged["sent_tensors"] > 1).all()


def test_an_exception_in_a_compressor_ends_all_ranks_with_its_message(ranks: WarmRanks, new_run) -> None:
    run, config = new_run("launch.nproc=2")
    with pytest.raises(RankError) as ended:
        ranks(train_run, str(run.path), named(config, "ddp", "fails"), True)
    assert set(ended.value.errors) == {0, 1}
    cause = root_cause(run, {0: 1, 1: 1})
    assert isinstance(cause, WorkerFailed)
    assert cause.rank == 0
    assert "ArithmeticError: cannot compress" in cause.message


@pytest.mark.parametrize("name", REGISTERED)
def test_a_strategy_adds_columns_of_other_names_than_the_wire(name: str) -> None:
    made = REGISTERED[name].load()
    names = [column.name for column in (*made.columns, *COMM_COLUMNS)]
    assert len(set(names)) == len(names)
