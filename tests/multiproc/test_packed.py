"""Packed arms beside padded ones, in one launch: the same steps, no padding, and a leak ends it before the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compared import compare_arms
from forked import forked_ranks
from multiproc.launches import TINY, fork, global_loss, rows_of, work_hashes

from dynbench.analysis.arms import named_arms
from dynbench.analysis.merge import merge_run
from dynbench.config.layers import load_config
from dynbench.config.schema import Analysis
from dynbench.engine.launching.run_launch import launch_arms
from dynbench.engine.turn_order import Turns
from dynbench.errors import EXIT_CHECKS
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

SHORT = (*TINY, "train.steps=3", "train.warmup_steps=1", "train.precision=fp32")
ARMS = {
    "static": ("schedule.policy=static",),
    "packed": ("schedule.policy=partition", "workload.layout=packed"),
    "packed in two rows": ("schedule.policy=partition", "workload.layout=packed", "schedule.micro_batches=2"),
    "flattened": ("schedule.policy=partition", "workload.layout=flattened"),
}
VIRTUAL = ("launch.launcher=virtual", "launch.nproc=1", "launch.world_size=2", "launch.comm_model=0.2,0.01")

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


@pytest.mark.parametrize("launcher", ["torchrun", "virtual"])
def test_packed_and_padded_arms_take_the_same_steps(tmp_path: Path, launcher: str) -> None:
    store, more = RunStore(tmp_path), VIRTUAL if launcher == "virtual" else ()
    configs = [load_config(None, [*SHORT, *more, *settings]) for settings in ARMS.values()]
    with forked_ranks():
        runs = launch_arms([(config, {}) for config in configs], store, turns=Turns(tuple(ARMS), 1, seed=3))
    static, *packed, flattened = runs
    losses = (static.path / "eval.csv").read_text().splitlines()[1].split(",")[1]
    for run in packed:
        assert run.status is Status.COMPLETED
        assert work_hashes(run) == work_hashes(static)
        assert global_loss(run) == pytest.approx(global_loss(static), rel=1e-5)
        assert float((run.path / "eval.csv").read_text().splitlines()[1].split(",")[1]) == pytest.approx(
            float(losses), rel=1e-5
        )
        rows = rows_of(run)
        assert set(rows["layout"]) == {"packed"} and (rows["padded_tokens"] == rows["real_tokens"]).all()
        proof = run.env()["packed_rows"]
        assert proof["foreign_gradient"] == 0 and max(proof["lengths"]) == run.env()["data"]["train"]["longest"]
    rows = rows_of(static)
    assert set(rows["layout"]) == {"padded"} and (rows["padded_tokens"] > rows["real_tokens"]).any()
    assert "packed_rows" not in static.env()
    assert set(rows_of(packed[1])["micro_batches"]) == {2}
    assert flattened.status is Status.COMPLETED and work_hashes(flattened) == work_hashes(static)
    assert set(rows_of(flattened)["layout"]) == {"flattened"}
    seen = flattened.env()["packed_rows"]
    assert seen["foreign_gradient"] > 0 and "another sample's embeddings" in seen["leak"]
    arms = named_arms({name: [merge_run(run)] for name, run in (("static", static), ("theirs", flattened))})
    (found,) = compare_arms(arms, Analysis())
    assert (found.level, found.loss_max_rel_diff) == ("tokens", None) and "see each other" in found.reason


def test_a_leak_ends_the_run_before_its_first_step(tmp_path: Path) -> None:
    settings = (*SHORT, *ARMS["packed"])
    process = fork(tmp_path, "train", "--json", settings=settings, first=SHIFTED)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == EXIT_CHECKS, stderr
    error = json.loads(stdout)["error"]
    assert error["kind"] == "leak" and "another sample's embeddings" in error["message"]
    (run,) = RunStore(tmp_path).list()
    assert run.status is Status.FAILED and not any(run.ranks_dir.glob("rank_*.csv"))
