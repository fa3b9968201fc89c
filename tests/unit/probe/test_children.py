"""Trial processes that are there and say nothing are named; those that wait for one that has ended are not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dynbench.config.schema import Probe
from dynbench.errors import Terminated, WorkerFailed
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
