"""Trial processes: who says nothing is named, none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynbench.config.layers import load_config
from dynbench.config.schema import Launch, Probe
from dynbench.engine.rank.memory import MemoryNow
from dynbench.errors import Terminated, WorkerFailed
from dynbench.plugins import STRATEGIES
from dynbench.probe import trial
from dynbench.probe.capacity import find_capacities
from dynbench.probe.children import Children
from dynbench.runs.run import Run
from dynbench.signals import handled, terminate

SAYS = {
    "answers": "while connection.recv(): connection.send({'fits': True, 'peak_mem_mb': 1})",
    "is silent": "import time; time.sleep(1000)",
    "takes the request and ends": "connection.recv()",
    "waits for the end": "connection.recv(); connection.recv()",
    "ends": "pass",
}
CONNECTED = "import sys; from multiprocessing.connection import Connection; connection = Connection(int(sys.argv[1]))\n"
pytestmark = pytest.mark.slow


def group(folder: Path, *ranks: str, timeout_s: float = 0.5) -> Children:
    (run := Run(folder)).logs_dir.mkdir(exist_ok=True)
    children = Children(run, Launch(threads=1), len(ranks))
    children.timeout_s = timeout_s
    for rank, what in enumerate(ranks):
        with children.log_of(rank).open("ab") as log:
            children.start_process([sys.executable, "-c", CONNECTED + SAYS[what]], log, os.environ)
    return children


@pytest.mark.parametrize(
    ("ranks", "named"), [(("is silent",), "0"), (("is silent", "is silent"), "0 and 1")], ids=["one", "two"]
)
def test_who_says_nothing_is_named(tmp_path, ranks, named):
    hung = f"rank {named} hung in 'trial': no answer for 0.5 s"
    with closing(group(tmp_path, *ranks)) as children, pytest.raises(WorkerFailed, match=hung) as caught:
        children.ask_all({"op": "trial"})
    assert caught.value.exit_code == 3 and "probe_rank_0.log" in caught.value.message


def test_who_waits_for_one_that_ended_is_not(tmp_path):
    with closing(group(tmp_path, "ends", "is silent")) as children:
        children._processes[0].wait()
        assert children.ask_all({"op": "trial"}) == [None, None] and children.gone == [0]


def test_ranks_that_wait_for_one_that_ended_in_a_collective_are_not_waited_for(tmp_path):
    with closing(group(tmp_path, "takes the request and ends", "waits for the end", timeout_s=60)) as children:
        assert children.ask_all({"op": "further"}, collective=True) == [None, None]
        assert children._processes[1].poll() is None and children.gone == [0]


def test_who_ends_in_every_trial_is_named_with_its_log(tmp_path):
    def start() -> closing[Children]:
        children = group(tmp_path, "answers", "ends", timeout_s=60)
        children._processes[1].wait()
        return closing(children)

    with pytest.raises(WorkerFailed, match="rank 1: trials of 1 samples of 8 tokens ended 2 times") as caught:
        find_capacities(start, [8], 2, 4, Probe(trials=2), lambda _: None)
    log = tmp_path / "logs" / "probe_rank_1.log"
    assert (caught.value.rank, caught.value.log) == (1, log) and str(log) in caught.value.message


def test_a_signal_while_a_process_is_started_leaves_none_behind(tmp_path, monkeypatch):
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def interrupted(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(begin([sys.executable, "-c", SAYS["is silent"]], **more))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    (tmp_path / "logs").mkdir()
    with handled(terminate), pytest.raises(Terminated), Children(Run(tmp_path), Launch(threads=1), 2):
        pass
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_the_code_of_the_strategy_is_read_before_memory_is_limited(monkeypatch):
    done: list[str] = []
    for name in ("build_workload", "null_group", "TrialStep"):
        monkeypatch.setattr(trial, name, lambda *_: SimpleNamespace(gradient_numel=1))
    monkeypatch.setattr(trial.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(trial.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(trial, "import_model_code", lambda _: done.append("model"))
    monkeypatch.setattr(type(STRATEGIES["fsdp"]), "load", lambda entry: done.append(entry.name))
    monkeypatch.setattr(trial, "_limit", lambda *_: done.append("limit"))
    spec = {"rank": 0, "world_size": 1, "memory_limit_bytes": 1, "rendezvous": "", "splits": False}
    config = load_config(None, ["launch.launcher=torchrun", "launch.threads=1", "sync.name=fsdp"])
    ours, theirs = Pipe()
    ours.close()
    with pytest.raises(OSError):
        trial._serve(spec, config, theirs)
    assert done == ["model", "fsdp", "limit"]


@pytest.mark.parametrize(("second", "peak"), [(108.0, 108.0), (None, 115.0)])
def test_a_soak_tells_how_far_above_the_limit_it_went(second, peak):
    """It has room beyond the limit for that; stopped there, a step wanted more than the room."""
    asked = []

    def fits(n: int, length: int, room: float) -> tuple[bool, float | None]:
        asked.append(room)
        return n < 3, 90.0 if n < 3 else second

    step = SimpleNamespace(
        fits=fits,
        limit_mb=100.0,
        device=trial.torch.device("cpu"),
        memory=SimpleNamespace(now=lambda: MemoryNow(None, 50.0)),
    )
    found = trial._soak(step, [(2, 8), (3, 8), (1, 8)])  # type: ignore[arg-type]  # what it asks of one
    assert (found["ok"], found["n"], found["peak_mem_mb"]) == (False, 3, pytest.approx(peak))
    assert set(asked) == {1.15} and len(asked) == (2 if second is None else 3)
