"""Probes: trials against memory that runs out, processes that die or hang, and what training makes of a probe."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from forked import forked_ranks
from multiproc.faults import Command, settled

from dynbench.config.layers import load_config
from dynbench.config.schema import Config, dump_config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.planning import build_problem
from dynbench.errors import NothingFits, WorkerFailed
from dynbench.probe.capacity import find_capacities, refuse_if_nothing_fits
from dynbench.probe.children import Children
from dynbench.probe.prober import run_probe
from dynbench.runs.probe_record import CapacityRow, ProbeRecord, read_probe
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED, Capacity

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]

LENGTH = 64
LIMIT_MB = 700
RANKS = 2
CEILING = 4000
"""More than the limit lets through, so that the search ends at a real failure."""
CONFIG = {
    "launch.device": "cpu",
    "launch.nproc": RANKS,
    "launch.threads": 1,
    "launch.timeout_s": 120,
    "probe.repeats": 2,
    "probe.gap": 0.2,
    "train.global_batch": 32,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run folder whose configuration the trial processes read."""
    store = RunStore(tmp_path_factory.mktemp("probe"))
    run = store.create("probe", "probe")
    run.config_file.write_text(dump_config(resolve(load_config(flags=CONFIG), this_machine(), store).config))
    return run


def children(run: Run, limit_mb: int = LIMIT_MB) -> Children:
    return Children(run, run.config().launch, RANKS, limit_mb * 10**6, tidy=True)


def test_what_passed_passes_again_a_third_more_fails_and_nothing_is_left(run: Run) -> None:
    settings = load_config(flags=CONFIG).probe
    rows, _ = find_capacities(lambda: children(run), [LENGTH], RANKS, CEILING, settings, lambda text: None)
    assert [row.rank for row in rows] == list(range(RANKS))
    for row in rows:
        assert row.tested_fail is not None
        assert 1 <= row.max_batch <= 0.9 * row.tested_ok
        assert row.tested_ok < row.tested_fail <= max(row.tested_ok + 1, 1.21 * row.tested_ok)
    with children(run) as group:
        beyond = group.ask([{"op": "trial", "n": int(1.33 * row.tested_ok) + 1, "length": LENGTH} for row in rows])
        assert [reply and reply["fits"] for reply in beyond] == [False] * RANKS
        again = group.ask([{"op": "trial", "n": row.max_batch, "length": LENGTH} for row in rows])
        assert [reply and reply["fits"] for reply in again] == [True] * RANKS
        pids = group.pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_process_that_hangs_is_named(run: Run) -> None:
    hung = "rank 1 hung in 'trial'"
    with forked_ranks(), pytest.raises(WorkerFailed, match=hung) as caught, children(run, limit_mb=4000) as group:
        os.kill(group.pids[1], signal.SIGSTOP)
        group.timeout_s, pids = 3, group.pids
        group.ask_all({"op": "trial", "n": 1, "length": LENGTH})
    assert "probe_rank_1.log" in caught.value.message and "launch.timeout_s" in caught.value.hint
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.matrix
def test_a_limit_below_the_model_is_said(run: Run) -> None:
    with pytest.raises(NothingFits, match="model and its optimizer"), children(run, limit_mb=300):
        pass


SMALL = [
    word
    for setting in ("lengths=[32]", "repeats=2", "soak_steps=0", "trials=2")
    for word in ("--set", f"probe.{setting}")
]
PATIENCE_S = 60
"""In which its processes also have to get ready, on a machine that has much else to do."""
GREEDY = """\
import resource
from dynbench.sync.ddp import Ddp

class Greedy(Ddp):
    def step(self, optimizer, precision):
        limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        if limited and self.wire.rank == 1:
            raise MemoryError("out of memory")
        super().step(optimizer, precision)
"""
PLUGIN = (
    "from dynbench.plugins import StrategyEntry, register\nregister(StrategyEntry('greedy', 'x', 'greedy:Greedy'))\n"
)


def _signalled(signum: signal.Signals, times: int) -> str:
    return f"import planted; planted.trial_process({int(signum)}, {times})"


@pytest.mark.fault
def test_a_killed_trial_is_tried_again(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("probe", "--json", *SMALL, first=_signalled(signal.SIGKILL, 1))
    settled(ended, ended.run, 0, Status.COMPLETED)
    assert "a trial process ended without an answer" in ended.stderr and "(try 1 of 2)" in ended.stderr
    found = json.loads(ended.stdout)["capacity"]
    assert [(row["rank"], row["length"]) for row in found] == [(0, 32), (1, 32)]
    assert all(row["max_batch"] > 0 for row in found)


@pytest.mark.fault
@pytest.mark.matrix
def test_trials_that_are_killed_every_time(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("probe", "--json", *SMALL, first=_signalled(signal.SIGKILL, 99))
    record = settled(ended, ended.run, 3, Status.FAILED, "rank 1: trials of ", "ended 2 times without", rank=1)
    assert record.failure is not None and record.failure.log == "logs/probe_rank_1.log"


@pytest.mark.fault
@pytest.mark.matrix
def test_a_trial_hangs(tmp_path: Path) -> None:
    patience = ("--set", f"launch.timeout_s={PATIENCE_S}")
    ended = Command(tmp_path).ran("probe", "--json", *SMALL, *patience, first=_signalled(signal.SIGSTOP, 1))
    said = f"rank 1 hung in 'trial': no answer for {PATIENCE_S} s (launch.timeout_s)"
    settled(ended, ended.run, 3, Status.FAILED, said, rank=1)
    assert "raise launch.timeout_s" in ended.error["hint"]


@pytest.mark.fault
@pytest.mark.matrix
def test_one_rank_finds_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins.py").write_text(PLUGIN)
    (tmp_path / "greedy.py").write_text(GREEDY)
    monkeypatch.setenv("DYNBENCH_PLUGINS", str(tmp_path / "plugins.py"))
    begun = Command(tmp_path)
    begun.begin("probe", "--json", *SMALL, "--set", "sync.name=greedy", real=True)  # plug-ins are found on import
    ended = begun.end()
    settled(ended, ended.run, 4, Status.OOM, "not one sample of ", "fits on rank 1")


LENGTHS = (64, 128, 256)


def whole(**changes: object) -> Config:
    fixed = {
        "launch.device": "cpu",
        "launch.nproc": RANKS,
        "launch.threads": 1,
        "launch.timeout_s": 120,
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
    return store, run_probe(whole(), store, report=lambda text: None, name="probed")


@pytest.fixture(scope="module")
def record(probe: tuple[RunStore, Run]) -> ProbeRecord:
    """Its record."""
    return read_probe(probe[1].path)


@pytest.mark.matrix
@pytest.mark.alone
def test_train_uses_the_capacities_and_the_cost_model(probe: tuple[RunStore, Run], record: ProbeRecord) -> None:
    store, run = probe
    config = whole(**{"schedule.mode": "dynamic", "probe.run": "probed"})
    resolved = resolve(config, this_machine(), store)
    assert resolved.config.schedule.capacity == run.id
    assert resolved.config.schedule.cost_type == "measured"
    problem = build_problem(resolved.config, np.array([10] * 40 + [250] * 40), RANKS, 1, store.root)
    assert record.cost_model is not None
    assert problem.cost.beta == record.cost_model.beta_ms_per_token
    assert problem.capacity == Capacity.table(record.tables)
    assert problem.capacity.limit(0, 257) == 0
    named = whole(**{"schedule.mode": "dynamic", "probe.run": "probed", "schedule.cost_type": "tokens"})
    assert resolve(named, this_machine(), store).config.schedule.cost_type == "tokens"


@pytest.mark.matrix
@pytest.mark.alone
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


def test_one_sample_that_does_not_fit_names_the_length_that_does() -> None:
    found = {128: 4, 256: 0}
    rows = [
        CapacityRow(rank=0, length=length, max_batch=n, tested_ok=n, tested_fail=n + 1, peak_mem_mb=None)
        for length, n in found.items()
    ]
    with pytest.raises(NothingFits, match="256 tokens fits on rank 0; 128 tokens fit"):
        refuse_if_nothing_fits(rows)
    refuse_if_nothing_fits(rows[:1])
