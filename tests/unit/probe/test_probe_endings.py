"""A probe as a run: whatever ends it, its record does not stay `running`."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest

from dynbench.config.load import load_config
from dynbench.errors import Terminated, UsageError, WorkerFailed
from dynbench.probe import prober
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore


@pytest.mark.parametrize(
    ("error", "status", "exit_code"),
    [
        (ZeroDivisionError("division by zero"), Status.FAILED, 1),
        (OSError(errno.ENOSPC, "No space left on device"), Status.FAILED, 2),
        (WorkerFailed("a trial process ended"), Status.FAILED, 3),
        (KeyboardInterrupt(), Status.INTERRUPTED, 130),
        (Terminated(signal.SIGTERM), Status.INTERRUPTED, 143),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_end_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: Status, exit_code: int
) -> None:
    def ended(*_: object) -> None:
        raise error

    monkeypatch.setattr(prober.Prober, "probe", ended)
    store = RunStore(tmp_path)
    with pytest.raises(type(error)):
        prober.run_probe(load_config(None, ["launch.device=cpu"]), store, report=lambda text: None)
    (run,) = store.list()
    assert (run.status, run.record().exit_code) == (status, exit_code)
    assert run.record().failure is not None


def test_several_nodes_are_refused_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober.Prober, "probe", lambda *_: pytest.fail("measured"))
    nodes = ["launch.device=cpu", "launch.nproc=2", "launch.nnodes=2", "launch.rdzv_endpoint=localhost:1"]
    with pytest.raises(UsageError, match=r"launch\.nnodes: 2"):
        prober.run_probe(load_config(None, nodes), RunStore(tmp_path), report=lambda text: None)
    assert not RunStore(tmp_path).list()
