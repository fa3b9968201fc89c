"""Trial processes: who says nothing is named, none is left behind."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynbench.config.layers import load_config
from dynbench.config.schema import Probe
from dynbench.errors import Terminated, WorkerFailed
from dynbench.plugins import STRATEGIES
from dynbench.probe import child
from dynbench.probe.capacity import find_capacities
from dynbench.probe.children import Children
from dynbench.signals import handled, terminate

SAYS = {
    "answers": """while input(): print('{"fits": true, "peak_mem_mb": 1}', flush=True)""",
    "is silent": "import time; time.sleep(1000)",
    "ends": "pass",
}
pytestmark = pytest.mark.slow


def group(folder: Path, *ranks: str) -> Children:
    children = Children({}, len(ranks), 1, folder, timeout_s=0.5, tidy=False)
    for what in ranks:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        children._processes.append(subprocess.Popen([sys.executable, "-c", SAYS[what]], **pipes))
    return children


@pytest.mark.parametrize(
    ("ranks", "named"), [(("is silent",), "0"), (("is silent", "is silent"), "0 and 1")], ids=["one", "two"]
)
def test_who_says_nothing_is_named(tmp_path: Path, ranks: tuple[str, ...], named: str) -> None:
    children = group(tmp_path, *ranks)
    try:
        with pytest.raises(WorkerFailed, match=f"rank {named} hung in 'trial': no answer for 0.5 s") as caught:
            children.ask_all({"op": "trial"})
    finally:
        children.close()
    assert caught.value.exit_code == 3 and "probe_rank_0.log" in caught.value.message


def test_who_waits_for_one_that_ended_is_not(tmp_path: Path) -> None:
    children = group(tmp_path, "ends", "is silent")
    children._processes[0].wait()
    try:
        assert children.ask_all({"op": "trial"}) == [None, None] and children.gone == [0]
    finally:
        children.close()


def test_who_ends_in_every_trial_is_named_with_its_log(tmp_path: Path) -> None:
    @contextmanager
    def start() -> Iterator[Children]:
        children = group(tmp_path, "answers", "ends")
        try:
            children._processes[1].wait()
            yield children
        finally:
            children.close()

    with pytest.raises(WorkerFailed, match="rank 1: trials of 1 samples of 8 tokens ended 2 times") as caught:
        find_capacities(start, [8], 2, 4, Probe(trials=2), lambda _: None)
    log = tmp_path / "probe_rank_1.log"
    assert (caught.value.rank, caught.value.log) == (1, log) and str(log) in caught.value.message


def test_a_signal_while_a_process_is_started_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def interrupted(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(begin([sys.executable, "-c", SAYS["is silent"]], **more))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with handled(terminate), pytest.raises(Terminated), Children({}, 2, 1, tmp_path, tidy=False):
        pass
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_the_code_of_the_strategy_is_read_before_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("build_workload", "null_group", "TrialStep"):
        monkeypatch.setattr(child, name, lambda *_: SimpleNamespace(gradient_numel=1))
    monkeypatch.setattr(child.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(child.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(child.sys, "stdin", io.StringIO())
    monkeypatch.setattr(child, "import_model_code", lambda _: done.append("model"))
    monkeypatch.setattr(type(STRATEGIES["fsdp"]), "load", lambda entry: done.append(entry.name))
    monkeypatch.setattr(child, "_limit", lambda *_: done.append("limit"))
    spec = {"device": "cpu", "servers": 0, "rank": 0, "world_size": 1, "threads": 1, "memory_limit_bytes": 1}
    config = load_config(None, ["launch.launcher=torchrun", "sync.name=fsdp"])
    child._serve({**spec, "rendezvous": "", "timeout_s": 1}, config, io.StringIO())
    assert done == ["model", "fsdp", "limit"]


@pytest.mark.parametrize(("second", "peak"), [(108.0, 108.0), (None, 115.0)])
def test_a_soak_tells_how_far_above_the_limit_it_went(second: float | None, peak: float) -> None:
    """It has room beyond the limit for that; stopped there, a step wanted more than the room."""
    asked = []

    def fits(n: int, length: int, room: float) -> tuple[bool, float | None]:
        asked.append(room)
        return n < 3, 90.0 if n < 3 else second

    step = SimpleNamespace(
        fits=fits,
        limit_mb=100.0,
        device=child.torch.device("cpu"),
        memory=SimpleNamespace(reserved_mb=lambda: 50.0),
    )
    found = child._soak(step, [(2, 8), (3, 8), (1, 8)])  # type: ignore[arg-type]  # what it asks of one
    assert (found["ok"], found["n"], found["peak_mem_mb"]) == (False, 3, pytest.approx(peak))
    assert set(asked) == {1.15} and len(asked) == (2 if second is None else 3)
