"""Every command that makes a run ends alike: the record, the exit code, and the folder that is named."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dynbench.bench import bench_run
from dynbench.cli.main import main
from dynbench.engine.launching import run_launch
from dynbench.errors import BatchTooLarge, NothingFits, Terminated, UsageError, WorkerFailed
from dynbench.experiment import compare, solve_run
from dynbench.probe import prober
from dynbench.runs.store import RunStore

WORK: dict[str, tuple[list[str], object, str]] = {
    "train": (["train", "--device", "cpu", "--nproc", "2"], run_launch, "launch_ranks"),
    "probe": (["probe", "--device", "cpu", "--nproc", "2"], prober, "probe"),
    "solve": (["solve", "lognormal", "--steps", "2", "--world-size", "2", "--policy", "static"], solve_run, "_write"),
    "bench": (["bench", "collectives", "--set", "backend=gloo"], bench_run, "launch_ranks"),
    "compare": (["compare", "--device", "cpu", "--nproc", "2"], compare, "run_launches"),
}
"""Per command: its arguments, and what does its work once the run is made."""
ENDINGS: dict[str, tuple[Callable[[], BaseException], str, int, str]] = {
    "usage": (lambda: UsageError("no", "Do this."), "failed", 2, "usage"),
    "worker": (lambda: WorkerFailed("rank 1 died", rank=1), "failed", 3, "worker"),
    "memory": (lambda: NothingFits("too much"), "oom", 4, "memory"),
    "batch": (lambda: BatchTooLarge("too much"), "failed", 4, "memory"),
    "ctrl-c": (lambda: KeyboardInterrupt(), "interrupted", 130, "interrupted"),
    "terminated": (lambda: Terminated(signal.SIGTERM), "interrupted", 143, "interrupted"),
    "disk": (lambda: OSError(errno.ENOSPC, "No space left on device", "x.csv"), "failed", 2, "storage"),
    "bug": (lambda: ZeroDivisionError("division by zero"), "failed", 1, "bug"),
}
MISTAKES = {
    "train": [["--policy", "partitio"], ["--global-batch", "1"]],
    "probe": [["--set", "launch.nnodes=2"], ["--lengths", "4096"]],
    "solve": [["--policy", "static", "--world-size", "2,4", "--global-batch", "6"], ["--policy", "statc"]],
    "bench": [["--set", "processes=1"], ["--set", "dtype=float7"]],
    "compare": [["--global-batch", "1"], ["--launches", "3", "--launch-mode", "apart"]],
}
"""Per command, options with which it cannot work; those of solve fail at the last of several sizes."""


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return RunStore(tmp_path / "results")


def plant(monkeypatch: pytest.MonkeyPatch, command: str, error: BaseException | None) -> list[str]:
    arguments, owner, work = WORK[command]

    def planted(*_: object, **__: object) -> None:
        assert error is not None, "it went to work"
        raise error

    monkeypatch.setattr(owner, work, planted)
    return arguments


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("command", WORK)
def test_every_end_of_every_command(
    command: str,
    ending: str,
    results: RunStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_error, status, exit_code, kind = ENDINGS[ending]
    assert main([*plant(monkeypatch, command, make_error()), "--json"]) == exit_code
    said = capsys.readouterr()
    (run,) = results.list()
    record = run.record()
    assert record.failure is not None
    assert (record.status, record.exit_code, record.failure.kind) == (status, exit_code, kind)
    assert f"run: {run.path}" in said.err.splitlines()
    shown = json.loads(said.out)
    assert (shown["run"]["id"], shown["run"]["path"]) == (run.id, str(run.path))
    assert (shown["error"]["kind"], shown["error"]["exit_code"]) == (kind, exit_code)
    assert record.failure.message == shown["error"]["message"]


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_in_the_options_leaves_no_entry(
    command: str, results: RunStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = plant(monkeypatch, command, None)
    for mistake in MISTAKES[command]:
        assert main([*arguments, *mistake]) == 2, mistake
        assert capsys.readouterr().err.startswith("error: ")
        assert results.list() == [], mistake
