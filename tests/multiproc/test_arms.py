"""Several arms in one launch: each trains as it would alone, packed or padded, with communication or without."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import polars as pl
import pytest
from forked import forked_ranks
from multiproc.faults import Command, settled
from multiproc.launches import TINY, VIRTUAL, global_loss, rows_of, sets, work_hashes
from sampled import matrix, sampled

from dynbench.analysis.merge import merge_run
from dynbench.config.layers import load_config
from dynbench.engine.launching.run_launch import launch_arms
from dynbench.engine.turn_order import Turns
from dynbench.errors import EXIT_CHECKS
from dynbench.experiment.training import run_training
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

SHORT = (*TINY, "train.steps=3", "train.warmup_steps=1", "train.precision=fp32")
ARMS = {"static": "schedule.mode=static", "prefix": "schedule.policy=prefix"}
DROPOUT = ("workload.dropout=0.3", "train.eval_every=5")
"""Random numbers are drawn in every step, and the run is evaluated in its middle."""


@pytest.mark.parametrize(
    ("launcher", "block"),
    sampled(product(("torchrun", "virtual"), (1, 3)), [("virtual", 1)]),
)
def test_every_arm_trains_as_it_would_alone(tmp_path: Path, launcher: str, block: int) -> None:
    store, more = RunStore(tmp_path), VIRTUAL if launcher == "virtual" else ()
    configs = [load_config(None, [*TINY, *DROPOUT, *more, setting]) for setting in ARMS.values()]
    with forked_ranks():
        jointly = launch_arms([(config, {}) for config in configs], store, turns=Turns(tuple(ARMS), block, seed=3))
        alone = [launch_arms([(config, {})], store)[0] for config in configs]
    turns: list[int] = []
    for shared, apart in zip(jointly, alone, strict=True):
        assert shared.status is Status.COMPLETED
        assert work_hashes(shared) == work_hashes(apart)
        assert global_loss(shared) == pytest.approx(global_loss(apart), rel=1e-6)
        assert (shared.path / "eval.csv").read_text() == (apart.path / "eval.csv").read_text()
        rows = rows_of(shared)
        first = rows.filter(pl.col("rank") == 0)
        assert first["step"].to_list() == list(range(8))
        assert first.filter(pl.col("warmup") == 1)["step"].to_list() == [0, 1, 5]
        assert rows["peak_mem_mb"].null_count() == rows.height and not rows_of(apart)["peak_mem_mb"].null_count()
        turns += first["turn"].unique().to_list()
        merged = merge_run(shared)
        assert not merged.partial and merged.measured.height == 5
        assert merged.blocks["steps"].sum() == 5 and merged.blocks.height >= 5 // block
    assert sorted(turns) == list(range(len(turns)))
    ids = {run.env()["together"]["id"] for run in jointly}  # type: ignore[index]
    assert ids == {jointly[0].id} and "together" not in alone[0].env()


LAYOUTS = {
    "static": ("schedule.policy=static",),
    "packed": ("schedule.policy=partition", "workload.layout=packed", "schedule.micro_batches=2"),
}
SHIFTED = """
from dynbench.kernels import Boundaries, packed_attention
attend = packed_attention.attend
def shifted(*given, **options):
    *states, boundaries = given
    first, *rest, last = boundaries.lengths
    return attend(*states, Boundaries((first + 1, *rest, last - 1)), **options)
packed_attention.attend = shifted
"""
"""Plants boundaries that are off by one."""


def evaluated(run: Run) -> float:
    """The loss of its only evaluation."""
    return float(pl.read_csv(run.path / "eval.csv")["loss"].item())


@pytest.mark.parametrize("launcher", ["torchrun", matrix("virtual")])
def test_packed_and_padded_arms_take_the_same_steps(tmp_path: Path, launcher: str) -> None:
    store, more = RunStore(tmp_path), VIRTUAL if launcher == "virtual" else ()
    configs = [load_config(None, [*SHORT, *more, *settings]) for settings in LAYOUTS.values()]
    with forked_ranks():
        runs = launch_arms([(config, {}) for config in configs], store, turns=Turns(tuple(LAYOUTS), 1, seed=3))
    static, packed = runs
    assert {run.status for run in runs} == {Status.COMPLETED}
    assert work_hashes(static) == work_hashes(packed)
    assert global_loss(packed) == pytest.approx(global_loss(static), rel=1e-5)
    assert evaluated(packed) == pytest.approx(evaluated(static), rel=1e-5)
    padded, unpadded = map(rows_of, runs)
    assert (set(padded["layout"]), set(unpadded["layout"])) == ({"padded"}, {"packed"})
    assert (padded["padded_tokens"] > padded["real_tokens"]).any()
    assert (unpadded["padded_tokens"] == unpadded["real_tokens"]).all()
    assert set(unpadded["micro_batches"]) == {2}
    proof = packed.env()["packed_rows"]
    assert proof["foreign_gradient"] == 0 and max(proof["lengths"]) == packed.env()["data"]["train"]["longest"]


def test_a_leak_ends_the_run_before_its_first_step(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("train", *sets(*SHORT, *LAYOUTS["packed"]), first=SHIFTED)
    settled(ended, ended.run, EXIT_CHECKS, Status.FAILED, "another sample's embeddings")
    assert ended.error["kind"] == "leak" and not any(ended.run.ranks_dir.glob("rank_*.csv"))


def test_a_training_beside_its_like_without_communication(store: RunStore) -> None:
    config = load_config(None, [*TINY, "sync.name=fsdp", "train.steps=4", "train.exposed=true"])
    with forked_ranks():
        result = run_training(config, store, name="both")
    assert result is not None and result.summary is not None
    null = store.resolve("both-null")
    assert result.null is not None and result.null.run.id == null.id and result.null.summary is not None
    assert (result.run.status, null.status) == (Status.COMPLETED, Status.COMPLETED)
    against = result.summary["against_null"]
    assert isinstance(against, dict) and (against["run"], against["steps"]) == (null.id, 4)
    assert result.summary["exposed_vs_null_ms"] == {"mean": against["exposed_ms"]}
    assert rows_of(null).select("bytes_wire", "collectives").sum().row(0) == (0, 0)
    rows = rows_of(result.run)
    assert (rows["sync_forward_ms"] > 0).all() and (rows["sync_backward_ms"] > 0).all(), "fsdp gathers in both"
    within = pl.sum_horizontal("sync_forward_ms", "sync_backward_ms", "sync_optimizer_ms")
    assert rows.select((within <= pl.col("sync_ms") + 1e-6).all()).item()
    assert rows.select((pl.col("hidden_comm_ms") <= pl.col("comm_ms") + 1e-6).all()).item()
    steps = merge_run(result.run).steps
    assert (steps["comm_wait_ms"] + steps["comm_transfer_ms"] - steps["comm_ms"]).abs().max() < 1e-2, "on one clock"
    calls = {row["operation"]: row["calls"] for row in result.summary["by_operation"]}
    assert calls.keys() >= {"all_gather", "reduce_scatter"}
    assert sum(calls.values()) == pytest.approx(result.summary["collectives"]["mean"])
