"""Several arms in one launch: each trains as it would alone, and what ends one is told of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import polars as pl
import pytest
from forked import forked_ranks
from multiproc.launches import TINY, fork, global_loss, rows_of, start, wait_until, work_hashes
from pixel import UNRENDERED

from dynbench.analysis.merge import merge_run
from dynbench.config.layers import load_config
from dynbench.engine.launching.run_launch import WORKER_MODULE, launch_arms
from dynbench.engine.launching.torchrun import rank_pids
from dynbench.engine.turn_order import Turns
from dynbench.errors import NothingFits
from dynbench.experiment.launch_plan import read_state
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

ARMS = {"static": "schedule.mode=static", "prefix": "schedule.policy=prefix", "partition": "schedule.policy=partition"}
DROPOUT = ("workload.dropout=0.3", "train.eval_every=5")
"""Random numbers are drawn in every step, and the run is evaluated in its middle."""
OTHER_TURNS = (("torchrun", 3), ("virtual", 1))
VIRTUAL = ("launch.launcher=virtual", "launch.nproc=1", "launch.world_size=3", "launch.comm_model=0.2,0.01")


@pytest.mark.parametrize(
    ("launcher", "block"),
    [("torchrun", 1), ("virtual", 3), *(pytest.param(*each, marks=pytest.mark.matrix) for each in OTHER_TURNS)],
)
def test_every_arm_trains_as_it_would_alone(tmp_path: Path, launcher: str, block: int) -> None:
    store, more = RunStore(tmp_path), VIRTUAL if launcher == "virtual" else ()
    configs = [load_config(None, [*TINY, *DROPOUT, *more, setting]) for setting in ARMS.values()]
    with forked_ranks():
        together = launch_arms([(config, {}) for config in configs], store, turns=Turns(tuple(ARMS), block, seed=3))
        alone = [launch_arms([(config, {})], store)[0] for config in configs]
    turns: list[int] = []
    for shared, apart in zip(together, alone, strict=True):
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
        assert sorted(path.name for path in shared.logs_dir.iterdir()) == [
            f"rank_{rank}.log" for rank in range(1 if launcher == "virtual" else 2)
        ]
    assert sorted(turns) == list(range(len(turns)))
    ids = {run.env()["together"]["id"] for run in together}  # type: ignore[index]
    assert ids == {together[0].id} and "together" not in alone[0].env()


@pytest.mark.fault
@pytest.mark.matrix
def test_a_comparison_killed_in_its_launch_goes_on_with_whole_launches(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    arms = "".join(f"  - {{name: {name}, set: {{{setting.replace('=', ': ')}}}}}\n" for name, setting in ARMS.items())
    recipe.write_text(f"description: three arms\narms:\n{arms}launches: 2\n", encoding="utf-8")
    store = RunStore(tmp_path / "results")
    endless = [word for setting in (*TINY, "train.steps=4000") for word in ("--set", setting)]
    process = start(store.root, "compare", str(recipe), "--name", "demo", *endless)
    wait_until(lambda: len(store.list()) == 4 and all(run.rank_file(1).exists() for run in store.list()[1:]), "rows")
    comparison, *runs = store.list()
    wait_until(lambda: all(run.rank_file(1).read_bytes().count(b"\n") > 8 for run in runs), "a few steps of all arms")
    os.kill(rank_pids(WORKER_MODULE, runs[0])[-1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=300)

    assert process.returncode == 3, stderr
    assert "was killed by SIGKILL" in stderr and "error: arm " in stderr
    assert rank_pids(WORKER_MODULE, runs[0]) == []
    statuses = {run.record().status: run for run in runs}
    assert sorted(run.status for run in runs) == [Status.FAILED, Status.INTERRUPTED, Status.INTERRUPTED]
    interrupted = statuses[Status.INTERRUPTED].record()
    assert (
        interrupted.failure is not None and "the launch that it shared was ended: arm " in interrupted.failure.message
    )
    for run in runs:
        assert json.loads((run.path / "summary.json").read_text())["partial"] is True
    state = read_state(comparison.path)
    ended = statuses[Status.FAILED].record().name
    assert ended is not None
    assert (ended.partition("-")[0],) in state.groups, "the arm that ended the launch goes on apart"

    short = [word for setting in TINY for word in ("--set", setting)]
    whole = ("compare", str(recipe), "--name", "short", "--launches", "2", *short, "--json")
    again = fork(store.root, *whole, first=UNRENDERED)
    out, stderr = again.communicate(timeout=300)
    assert again.returncode == 0, stderr
    found = json.loads(out)
    assert found["launches"]["mode"] == "interleaved" and found["launches"]["count"] == 2
    assert [item["launches"] for item in found["comparisons"]] == [2, 2]
    assert [item["level"] for item in found["comparisons"]] == ["stream", "step"]
    assert found["comparisons"][1]["loss_max_rel_diff"] < 1e-3


@pytest.mark.fault
def test_one_arm_out_of_memory_is_told_from_the_others(tmp_path: Path) -> None:
    """The second arm's strategy fails as an allocator does, in its fourth step."""
    (tmp_path / "plugins.py").write_text(
        "from dynbench.plugins import StrategyEntry, register\n"
        "register(StrategyEntry('greedy', 'runs out of memory', 'greedy:Greedy'))\n"
    )
    (tmp_path / "greedy.py").write_text(
        "from dynbench.sync.ddp import Ddp\n"
        "class Greedy(Ddp):\n"
        "    steps = 0\n"
        "    def drain(self):\n"
        f"        with open({str(tmp_path / 'drained')!r} + str(self.wire.rank), 'a') as file:\n"
        "            file.write(f'{self.steps}\\n')\n"
        "    def step(self, optimizer, precision):\n"
        "        self.steps += 1\n"
        "        if self.steps == 4 and self.wire.rank == 1:\n"
        "            raise MemoryError('out of memory')\n"
        "        super().step(optimizer, precision)\n"
    )
    recipe = tmp_path / "two.yaml"
    recipe.write_text(
        "description: two\narms:\n  - {name: ddp}\n  - {name: greedy, set: {sync.name: greedy}}\nlaunches: 2\n"
    )
    store = RunStore(tmp_path / "results")
    sets = [word for setting in TINY for word in ("--set", setting)]
    process = start(
        store.root, "compare", str(recipe), "--name", "demo", *sets, DYNBENCH_PLUGINS=str(tmp_path / "plugins.py")
    )
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == NothingFits("").exit_code, stderr
    assert "error: arm greedy: rank 1:" in stderr and "--resume demo" in stderr
    comparison, ddp, greedy = store.list()
    assert (ddp.status, greedy.status) == (Status.INTERRUPTED, Status.OOM)
    assert rank_pids(WORKER_MODULE, ddp) == []
    assert rows_of(ddp).height >= 6 and rows_of(greedy).height >= 6
    assert (tmp_path / "drained1").read_text().split() == ["1", "2", "3"], "once a turn, within its step"
    state = read_state(comparison.path)
    assert state.mode == "apart" and state.groups == (("ddp",), ("greedy",))
    assert "ended a launch that it shared" in state.reason
