"""A whole probe: what it finds makes sense, and training uses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.planning import build_problem
from dynbench.errors import NothingFits, UsageError
from dynbench.probe.capacity import refuse_if_nothing_fits
from dynbench.probe.prober import run_probe
from dynbench.runs.probe_record import ProbeRecord, read_probe
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED, Capacity

pytestmark = [pytest.mark.multiproc, pytest.mark.slow, pytest.mark.alone]

LENGTHS = (64, 128, 256)
RANKS = 2


def settings(**changes: object) -> Config:
    fixed = {
        "launch.device": "cpu",
        "launch.nproc": RANKS,
        "launch.threads": 1,
        "probe.lengths": list(LENGTHS),
        "probe.memory_limit": "700MB",
        "probe.repeats": 2,
        "probe.soak_steps": 5,
        "train.global_batch": 32,
    }
    return load_config(flags=fixed | changes)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, Run]:
    """A whole probe, capacities through predictions, and the registry it is in."""
    store = RunStore(tmp_path_factory.mktemp("whole"))
    return store, run_probe(settings(), store, report=lambda text: None, name="probed")


@pytest.fixture(scope="module")
def record(probe: tuple[RunStore, Run]) -> ProbeRecord:
    """Its record."""
    return read_probe(probe[1].path)


def test_train_uses_the_capacities_and_the_cost_model(probe: tuple[RunStore, Run], record: ProbeRecord) -> None:
    store, run = probe
    config = settings(**{"schedule.mode": "dynamic", "probe.run": "probed"})
    resolved = resolve(config, this_machine(), store)
    assert resolved.config.schedule.capacity == run.id
    assert resolved.config.schedule.cost_type == "measured"
    problem = build_problem(resolved.config, np.array([10] * 40 + [250] * 40), RANKS, 1, store.root)
    assert record.cost_model is not None
    assert problem.cost.beta == record.cost_model.beta_ms_per_token
    assert problem.capacity == Capacity.table(record.tables)
    assert problem.capacity.limit(0, 257) == 0
    named = settings(**{"schedule.mode": "dynamic", "probe.run": "probed", "schedule.cost_type": "tokens"})
    assert resolve(named, this_machine(), store).config.schedule.cost_type == "tokens"


def test_a_whole_probe_is_kept_and_makes_sense(record: ProbeRecord) -> None:
    assert len(record.capacity) == RANKS * len(LENGTHS)
    assert record.cost_model is not None
    assert record.cost_model.beta_ms_per_token > 0
    assert set(record.cost_model.heldout) == {"tokens", "tokens_sq", "attention", "measured", "table"}
    assert record.soak is not None
    assert record.soak.ok
    assert record.allreduce is not None
    assert record.allreduce.ms > 0
    assert record.predicted_speedup["partition"] is not None
    assert record.predicted_speedup["partition"] > 1
    for table in record.tables:
        capacities = [UNLIMITED if n is None else n for _, n in table]
        assert capacities == sorted(capacities, reverse=True)
        assert [length for length, _ in table][-1] == max(LENGTHS)


def test_one_sample_that_does_not_fit_names_the_length_that_does(record: ProbeRecord) -> None:
    refuse_if_nothing_fits(record.capacity)
    rows = [row.model_copy(update={"max_batch": 0}) if row.length == 256 else row for row in record.capacity]
    with pytest.raises(NothingFits, match="256 tokens fits on rank 0; 128 tokens fit"):
        refuse_if_nothing_fits(rows)


def test_lengths_beyond_the_model_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"probe\.lengths: 1024"):
        run_probe(settings(**{"probe.lengths": [64, 1024]}), RunStore(tmp_path), report=lambda text: None)
    assert not list(tmp_path.iterdir())
