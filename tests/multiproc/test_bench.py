"""Collectives on as many ranks as each case wants: nothing is wrong, and virtual ranks are charged by its file."""

from __future__ import annotations

import pytest
from forked import forked_ranks
from multiproc.launches import TINY

from dynbench.bench.bench_run import measure_bench, start_bench
from dynbench.bench.collectives import COMM_FILE, Collectives
from dynbench.config.layers import load_config
from dynbench.engine.comm_model import build_comm_model
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.plugins.benchmarks import CollectivesOptions
from dynbench.runs.provenance import usable_cores
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]


def test_ranks_agree_on_the_known_sum(store: RunStore) -> None:
    options = CollectivesOptions(
        operations=("all_reduce",), sizes_mib=(0.5, 0.25), backend=("gloo",), processes=(2, 3), iterations=3, warmup=1
    )
    with forked_ranks():
        result = measure_bench(start_bench("collectives", Collectives(options), store), report=lambda _: None)
    assert result.run.status is Status.COMPLETED
    assert [(row.status, row.columns["size"], row.n) for row in result.rows] == [
        ("ok", 2**18, 3), ("ok", 2**19, 3)
    ] * 2  # fmt: skip
    assert {(row.columns["#wrong"], row.columns["unequal"], row.reference_error) for row in result.rows} == {(0, 0, 0)}
    assert [row.columns["processes"] for row in result.rows] == [2, 2, 3, 3]
    assert all(str(row.columns["shared"]).startswith("3 processes on") for row in result.rows[2:]) or usable_cores() > 2
    assert all(row.p20 and row.p50 and row.p80 and row.p20 <= row.p50 <= row.p80 for row in result.rows)

    file = str(result.run.path / COMM_FILE)
    config = load_config(None, [*TINY, "launch.launcher=virtual", "launch.world_size=4", f"launch.comm_model={file}"])
    kept = resolve(config, this_machine(), store).config.launch.comm_model
    assert build_comm_model(kept, store.root).allreduce_ms(2**18 / 1e6, 2) == pytest.approx(result.rows[0].p50)
