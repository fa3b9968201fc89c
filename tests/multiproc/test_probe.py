"""The probe against memory that really runs out, and trial processes that are really killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from dynbench.config.dump import dump_config
from dynbench.config.load import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.planning import build_problem
from dynbench.errors import NothingFits, UsageError, WorkerFailed
from dynbench.probe.capacity import ProbedCapacities, find_capacities, refuse_if_nothing_fits
from dynbench.probe.children import Children, Reply
from dynbench.probe.prober import run_probe
from dynbench.runs.probe_record import ProbeRecord, read_probe
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED, Capacity

pytestmark = [pytest.mark.multiproc, pytest.mark.slow, pytest.mark.alone]

LENGTHS = (64, 128, 256)
SEARCHED = (64, 256)
LIMIT = "700MB"
RANKS = 2
CEILING = 4000
"""More than the limit lets through at any of the lengths, so that every search ends at a real failure."""


def settings(**changes: object) -> Config:
    fixed = {
        "launch.device": "cpu",
        "launch.nproc": RANKS,
        "launch.threads": 1,
        "probe.lengths": list(LENGTHS),
        "probe.memory_limit": LIMIT,
        "probe.repeats": 2,
        "probe.soak_steps": 5,
        "train.global_batch": 32,
    }
    return load_config(flags=fixed | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run folder whose configuration the trial processes read."""
    store = RunStore(tmp_path_factory.mktemp("probe"))
    run = store.create("probe", "probe")
    run.config_file.write_text(dump_config(resolve(settings(), this_machine(), store).config))
    return run


def children(run: Run, limit_mb: int = 700) -> Children:
    spec = {"run": str(run.path), "device": "cpu", "memory_limit_bytes": limit_mb * 10**6, "timeout_s": 120}
    return Children(spec, RANKS, 1, run.logs_dir, timeout_s=120, tidy=True)


def search(start: Callable[[], Children], lengths: Sequence[int] = SEARCHED, tries: int = 3) -> ProbedCapacities:
    return find_capacities(start, lengths, RANKS, CEILING, settings(**{"probe.trials": tries}).probe, lambda text: None)


@pytest.fixture(scope="module")
def found(run: Run) -> ProbedCapacities:
    """A whole search on real memory."""
    return search(lambda: children(run))


def test_what_passed_passes_again_and_a_fifth_more_fails(run: Run, found: ProbedCapacities) -> None:
    for length in SEARCHED:
        rows = [row for row in found.rows if row.length == length]
        assert [row.rank for row in rows] == list(range(RANKS))
        with children(run) as group:
            again = group.ask([{"op": "trial", "n": row.tested_ok, "length": length} for row in rows])
            assert [reply and reply["fits"] for reply in again] == [True] * RANKS
            more = [max(int(1.2 * row.tested_ok), row.tested_ok + 1) for row in rows]
            beyond = group.ask([{"op": "trial", "n": n, "length": length} for n in more])
            assert [reply and reply["fits"] for reply in beyond] == [False] * RANKS
            after = group.ask_all({"op": "trial", "n": 1, "length": length})
            assert [reply and reply["fits"] for reply in after] == [True] * RANKS


def test_capacity_falls_with_length_and_leaves_a_margin(found: ProbedCapacities) -> None:
    for rank in range(RANKS):
        rows = {row.length: row for row in found.rows if row.rank == rank}
        assert rows[64].max_batch >= rows[256].max_batch >= 1
        for row in rows.values():
            assert row.tested_fail is not None
            assert row.max_batch <= 0.9 * row.tested_ok
            assert row.tested_ok < row.tested_fail <= max(row.tested_ok + 1, 1.06 * row.tested_ok)


class KilledAtSecondTrial(Children):
    """Loses a process to SIGKILL the second time a trial is asked for, once."""

    asked = 0

    def ask(self, requests: Sequence[Mapping[str, object]], *, together: bool = False) -> list[Reply | None]:
        if requests[0]["op"] == "trial":
            KilledAtSecondTrial.asked += 1
            if KilledAtSecondTrial.asked == 2:
                os.kill(self.pids[0], signal.SIGKILL)
        return super().ask(requests, together=together)


def test_a_killed_trial_process_does_not_change_the_answer(run: Run, found: ProbedCapacities) -> None:
    KilledAtSecondTrial.asked = 0
    spec = children(run)._spec

    def start() -> Children:
        return KilledAtSecondTrial(spec, RANKS, 1, run.logs_dir, timeout_s=120, tidy=True)

    again = search(start, [256])
    assert KilledAtSecondTrial.asked > 2
    expected = [row for row in found.rows if row.length == 256]
    for before, after in zip(expected, again.rows, strict=True):
        assert (after.rank, after.length) == (before.rank, before.length)
        assert after.tested_ok == pytest.approx(before.tested_ok, rel=0.06, abs=1), "as near as the search itself goes"


def test_a_process_that_always_dies_is_an_error_not_an_answer(run: Run) -> None:
    class AlwaysKilled(Children):
        def ask(self, requests: Sequence[Mapping[str, object]], *, together: bool = False) -> list[Reply | None]:
            os.kill(self.pids[1], signal.SIGKILL)
            return super().ask(requests, together=together)

    spec = children(run)._spec
    with pytest.raises(WorkerFailed, match=r"rank 1: trials of .* without an answer"):
        search(lambda: AlwaysKilled(spec, RANKS, 1, run.logs_dir, timeout_s=120, tidy=True), [256], tries=2)


def test_a_process_that_hangs_is_named(run: Run) -> None:
    with pytest.raises(WorkerFailed, match="rank 1 hung in 'trial'") as caught, children(run) as group:
        os.kill(group.pids[1], signal.SIGSTOP)
        group.timeout_s, pids = 10, group.pids
        group.ask_all({"op": "trial", "n": 1, "length": 64})
    assert "probe_rank_1.log" in caught.value.message and "launch.timeout_s" in caught.value.hint
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_no_trial_process_outlives_its_group(run: Run) -> None:
    with children(run) as group:
        pids = group.pids
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def test_a_limit_below_the_model_is_said(run: Run) -> None:
    with pytest.raises(NothingFits, match="model and its optimizer"), children(run, limit_mb=300):
        pass


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
