"""AdamW on two ranks: divided state is half of it, and as much is sent as one all-reduce of the gradients sends."""

from __future__ import annotations

import pytest
from answered import unanswered
from forked import forked_ranks

from dynbench.bench.bench_run import measure_bench, start_bench
from dynbench.bench.optimizer import MOMENTS, OptimizerState
from dynbench.plugins.benchmarks import OptimizerOptions
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]


def test_divided_state_is_half_of_it(store: RunStore) -> None:
    options = OptimizerOptions(context=4, local_batch=1, precisions=("fp32",), iterations=2, warmup=0, device="cpu")
    benchmark = OptimizerState(options)
    with forked_ranks():
        result = measure_bench(start_bench("optimizer", benchmark, store), report=lambda _: None)
    assert result.run.status is Status.COMPLETED and {row.status for row in result.rows} == {"ok"}
    memory = {
        (row.columns["way"], row.columns["moment"], row.columns["part"]): row.p50 or 0.0
        for row in result.rows
        if row.columns["quantity"] == "memory"
    }
    assert {row.unit for row in result.rows if row.columns["quantity"] != "time"} == {"MB"}
    for way in ("adamw", "zero1"):
        parts = {moment: {part: memory[way, moment, part] for part in ("gradients", "optimizer")} for moment in MOMENTS}
        assert parts["init"]["optimizer"] == 0 < parts["before"]["optimizer"] == parts["after"]["optimizer"]
        for moment in MOMENTS:
            split = sum(memory[way, moment, part] for part in ("parameters", "gradients", "optimizer", "rest"))
            assert split == pytest.approx(memory[way, moment, "total"], rel=1e-2)  # maxima over ranks
            assert memory[way, moment, "peak"] >= memory[way, moment, "total"]
    parameters = memory["adamw", "init", "parameters"]
    assert memory["adamw", "after", "optimizer"] == pytest.approx(2 * parameters, rel=1e-3)
    ratios = benchmark.summary(result.rows)["zero1_of_adamw"]
    assert isinstance(ratios, dict)
    of_tiny = ratios["tiny float32"]
    assert of_tiny["state"] == pytest.approx(0.5, rel=1e-2) and of_tiny["sent"] == pytest.approx(1, rel=1e-2)
    for row in result.rows:
        if row.columns["quantity"] == "traffic":
            assert row.p50 == pytest.approx(float(row.columns["formula_mb"]), rel=1e-2)
    assert unanswered("optimizer", result.rows) == []
    told = benchmark.said(result.rows)
    more = min(of_tiny["total"], of_tiny["peak"]) > 1
    assert len(told) == 1 + more and ("saves no memory" in told[-1]) == more
