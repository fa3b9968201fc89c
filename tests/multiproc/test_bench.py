"""Benchmarks and the check of strategies on ranks of their own: collectives, AdamW's state, the strategies' toy."""

from __future__ import annotations

import multiprocessing
import os
import signal
from itertools import product

import pytest
from forked import forked_ranks

from dynbench.bench.bench_run import measure_bench, start_bench
from dynbench.bench.collectives import COMM_FILE, Collectives
from dynbench.bench.optimizer import MOMENTS, OptimizerState
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.rank.toy_check import check_strategies
from dynbench.plugins import STRATEGIES
from dynbench.plugins.benchmarks import CollectivesOptions, OptimizerOptions
from dynbench.runs.run import Status
from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]

QUANTITIES = ("time", "memory", "traffic")


def test_ranks_agree_on_the_known_sum(store: RunStore) -> None:
    sizes = {"operations": ("all_reduce",), "sizes_mib": (0.5, 0.25), "processes": (2, 3)}
    options = CollectivesOptions(**sizes, backend=("gloo",), iterations=3, warmup=1)
    with forked_ranks():
        result = measure_bench(start_bench("collectives", Collectives(options), store), report=lambda _: None)
    assert result.run.status is Status.COMPLETED
    assert [(row.status, row.n) for row in result.rows] == [("ok", 3)] * 4
    assert [(row.columns["processes"], row.columns["size"]) for row in result.rows] == [
        (processes, size) for processes in (2, 3) for size in (2**18, 2**19)
    ]
    assert {(row.columns["#wrong"], row.columns["unequal"], row.reference_error) for row in result.rows} == {(0, 0, 0)}
    comm_model = build_comm_model(str(result.run.path / COMM_FILE), store.root)
    assert comm_model.allreduce_ms(2**18 / 1e6, 2) == pytest.approx(result.rows[0].p50)


def test_divided_state_is_half_of_it(store: RunStore) -> None:
    options = OptimizerOptions(context=4, local_batch=1, precisions=("fp32",), iterations=2, warmup=0, device="cpu")
    benchmark = OptimizerState(options)
    with forked_ranks():
        result = measure_bench(start_bench("optimizer", benchmark, store), report=lambda _: None)
    assert result.run.status is Status.COMPLETED and {row.status for row in result.rows} == {"ok"}
    of = {quantity: [row for row in result.rows if row.columns["quantity"] == quantity] for quantity in QUANTITIES}
    memory = {tuple(row.columns[key] for key in ("way", "moment", "part")): row.p50 or 0.0 for row in of["memory"]}
    for way, moment in product(("adamw", "sharded", "zero1"), MOMENTS):
        split = sum(memory[way, moment, part] for part in ("parameters", "gradients", "optimizer", "rest"))
        total = memory[way, moment, "total"]  # each a maximum over ranks, which differ where parameters are dealt whole
        assert 0.99 * total < split == pytest.approx(total, rel=0.15 if way == "sharded" else 1e-2)
        assert memory[way, moment, "peak"] >= total
        assert memory[way, moment, "optimizer"] == (0 if moment == "init" else memory[way, "after", "optimizer"])
    state = 2 * memory["adamw", "init", "parameters"]
    assert memory["adamw", "after", "optimizer"] == pytest.approx(state, rel=1e-3)
    sharded, zero1 = benchmark.summary(result.rows)["of_adamw"].values()  # type: ignore[attr-defined]
    assert 0.5 <= sharded["state"] < 0.7 and zero1["state"] == pytest.approx(0.5, rel=1e-2), "a large one, dealt whole"
    assert 1.4 < sharded["sent"] < 1.7 and zero1["sent"] == pytest.approx(1, rel=1e-2), "broadcasts, or no more"
    for row in of["traffic"]:
        if row.columns["way"] != "sharded":
            assert row.p50 == pytest.approx(float(row.columns["formula_mb"]), rel=1e-2)


def test_results_come_while_ranks_run_and_these_end_with_whoever_asked() -> None:
    names = [name for name, entry in STRATEGIES.items() if not entry.servers]
    checking = check_strategies(names, 2)
    first = next(checking)
    ranks = multiprocessing.active_children()
    assert (first.strategy, first.passed) == (names[0], True)
    assert len(ranks) == 2, "they go on with the other strategies"
    for pid in [rank.pid for rank in ranks if rank.pid]:
        os.kill(pid, signal.SIGINT)
    assert next(checking).passed, "Ctrl-C is for the command, which ends them"
    checking.close()
    assert not any(rank.is_alive() for rank in ranks)
