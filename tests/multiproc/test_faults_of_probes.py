"""A probe whose trial processes are killed, hang or find no memory: tried again, or a line that names the rank."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from multiproc.faults import Command, settled

from dynbench.runs.run_record import Status

pytestmark = [pytest.mark.multiproc, pytest.mark.fault, pytest.mark.matrix]

SMALL = [
    word
    for setting in ("lengths=[32]", "repeats=2", "soak_steps=0", "trials=2")
    for word in ("--set", f"probe.{setting}")
]
PATIENCE_S = 90
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


def test_a_killed_trial_is_tried_again(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("probe", "--json", *SMALL, first=_signalled(signal.SIGKILL, 1))
    settled(ended, ended.run, 0, Status.COMPLETED)
    assert "a trial process ended without an answer" in ended.stderr and "(try 1 of 2)" in ended.stderr
    found = json.loads(ended.stdout)["capacity"]
    assert [(row["rank"], row["length"]) for row in found] == [(0, 32), (1, 32)]
    assert all(row["max_batch"] > 0 for row in found)


def test_trials_that_are_killed_every_time(tmp_path: Path) -> None:
    ended = Command(tmp_path).ran("probe", "--json", *SMALL, first=_signalled(signal.SIGKILL, 99))
    record = settled(ended, ended.run, 3, Status.FAILED, "rank 1: trials of ", "ended 2 times without", rank=1)
    assert record.failure is not None and record.failure.log == "logs/probe_rank_1.log"


def test_a_trial_hangs(tmp_path: Path) -> None:
    patience = ("--set", f"launch.timeout_s={PATIENCE_S}")
    ended = Command(tmp_path).ran("probe", "--json", *SMALL, *patience, first=_signalled(signal.SIGSTOP, 1))
    said = f"rank 1 hung in 'trial': no answer for {PATIENCE_S} s (launch.timeout_s)"
    settled(ended, ended.run, 3, Status.FAILED, said, rank=1)
    assert "raise launch.timeout_s" in ended.error["hint"]


def test_one_rank_finds_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins.py").write_text(PLUGIN)
    (tmp_path / "greedy.py").write_text(GREEDY)
    monkeypatch.setenv("DYNBENCH_PLUGINS", str(tmp_path / "plugins.py"))
    begun = Command(tmp_path)
    begun.begin("probe", "--json", *SMALL, "--set", "sync.name=greedy", real=True)  # plug-ins are found on import
    ended = begun.end()
    settled(ended, ended.run, 4, Status.OOM, "not one sample of ", "fits on rank 1")
