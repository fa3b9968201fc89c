"""Probes: trials against memory that runs out, processes that die or hang, and what training makes of a probe."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from multiproc.faults import Command, settled
from multiproc.launches import sets

from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.errors import NothingFits
from dynbench.probe.capacity import find_capacities, refuse_if_nothing_fits
from dynbench.probe.children import Children
from dynbench.probe.prober import run_probe
from dynbench.runs.probe_record import CapacityRow, read_probe
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.schedule.capacity import UNLIMITED

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]

LENGTH = 64
LIMIT_MB = 850
"""A process holds up to 680 before its first sample: pages of libraries that are in memory already count."""
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


def children(run: Run, limit_mb: int = LIMIT_MB, ranks: int = RANKS) -> Children:
    return Children(run, run.config().launch, ranks, limit_mb * 10**6, tidy=True)


def test_what_passed_passes_again_a_third_more_fails_and_nothing_is_left(run: Run) -> None:
    """Of one rank: the commands below have two."""
    settings, trial = load_config(flags=CONFIG).probe, {"op": "trial", "length": LENGTH}
    rows, _ = find_capacities(lambda: children(run, ranks=1), [LENGTH], 1, CEILING, settings, lambda text: None)
    assert [row.rank for row in rows] == [0]
    for row in rows:
        assert row.tested_fail is not None
        assert 1 <= row.max_batch <= 0.9 * row.tested_ok
        assert row.tested_ok < row.tested_fail <= max(row.tested_ok + 1, 1.21 * row.tested_ok)
    with children(run, ranks=1) as group:
        beyond = group.ask([{**trial, "n": int(1.33 * row.tested_ok) + 1} for row in rows])
        assert [reply and reply["fits"] for reply in beyond] == [False]
        again = group.ask([{**trial, "n": row.max_batch} for row in rows])
        assert [reply and reply["fits"] for reply in again] == [True]
        pids = group.pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.matrix
def test_a_limit_below_the_model_is_said(run: Run) -> None:
    with pytest.raises(NothingFits, match="model and its optimizer"), children(run, limit_mb=300):
        pass


SMALL = sets(*(f"probe.{each}" for each in ("lengths=[32]", "repeats=2", "soak_steps=0", "trials=2")))
PATIENCE_S = 60
"""In which its processes also have to get ready, on a machine that has much else to do."""


def _signalled(signum: signal.Signals, times: int) -> str:
    return f"import planted; planted.trial_process({int(signum)}, {times})"


@pytest.mark.fault
def test_a_killed_trial_is_tried_again(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("probe", *SMALL, first=_signalled(signal.SIGKILL, 1))
    settled(ended, ended.run, 0, Status.COMPLETED)
    assert "a trial process ended without an answer" in ended.stderr and "(try 1 of 2)" in ended.stderr
    found = ended.said["capacity"]
    assert [(row["rank"], row["length"]) for row in found] == [(0, 32), (1, 32)]
    assert all(row["max_batch"] > 0 for row in found)


@pytest.mark.fault
@pytest.mark.matrix
def test_trials_that_are_killed_every_time(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("probe", *SMALL, first=_signalled(signal.SIGKILL, 99))
    record = settled(ended, ended.run, 3, Status.FAILED, "rank 1: trials of ", "ended 2 times without", rank=1)
    assert record.failure is not None and record.failure.log == "logs/probe_rank_1.log"


@pytest.mark.fault
@pytest.mark.matrix
def test_a_trial_hangs(tmp_path: Path) -> None:
    patience = sets(f"launch.timeout_s={PATIENCE_S}")
    ended = Command(tmp_path).ran("probe", *SMALL, *patience, first=_signalled(signal.SIGSTOP, 1))
    said = f"rank 1 hung in 'trial': no answer for {PATIENCE_S} s (launch.timeout_s)"
    settled(ended, ended.run, 3, Status.FAILED, said, rank=1)
    assert "raise launch.timeout_s" in ended.error["hint"]


@pytest.mark.fault
@pytest.mark.matrix
def test_one_rank_finds_no_memory(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("probe", *SMALL, first="import planted; planted.greedy_rank()")
    settled(ended, ended.run, 4, Status.OOM, "not one sample of ", "fits on rank 1")


LENGTHS = (64, 128, 256)


@pytest.mark.matrix
@pytest.mark.alone
def test_a_whole_probe_makes_sense(tmp_path: Path) -> None:
    fixed = {"probe.lengths": list(LENGTHS), "probe.memory_limit": f"{LIMIT_MB}MB", "probe.soak_steps": 5}
    run = run_probe(load_config(flags=CONFIG | fixed), RunStore(tmp_path), report=lambda text: None)
    record = read_probe(run.path)
    assert len(record.capacity) == RANKS * len(LENGTHS)
    assert record.cost_model is not None and record.cost_model.beta_ms_per_token > 0
    assert set(record.cost_model.heldout) == {"tokens", "tokens_sq", "attention", "measured", "table"}
    assert record.soak is not None and record.soak.ok
    assert record.allreduce is not None and record.allreduce.ms > 0
    speedup = record.predicted_speedup["partition"]
    assert speedup is not None and speedup > 1
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
