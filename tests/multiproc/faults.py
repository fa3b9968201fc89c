"""Commands that meet a fault, and what has to hold after every one of them."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedPopen
from multiproc.launches import TINY, command, environment, wait_until
from pixel import png
from planted import in_folder

from dynbench.analysis.rankfiles import find_rank_files, read_rank_file
from dynbench.runs.names import ids_in
from dynbench.runs.run import Run
from dynbench.runs.run_record import RunRecord
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore

NAME = "läufe, 'n results"
"""A results folder on a path with a space, a quote and a letter beyond ASCII."""
SETS = {
    "train": [word for setting in TINY for word in ("--set", setting)],
    "bench": [
        "--set",
        "operations=all_reduce",
        "--set",
        "backend=gloo",
        "--set",
        "sizes_mib=0.25,0.5",
        "--set",
        "iterations=3",
        "--set",
        "warmup=1",
    ],
}
ENDLESS = ["--set", "train.steps=100000"]
TWO_ARMS = "description: two\narms:\n  - {name: static}\n  - {name: partition, set: {schedule.mode: dynamic}}\n"
Saw = Callable[[str], None]


@dataclass
class Command:
    """A command that works in a folder of its own, with its results beside.

    Args:
        folder: where it works; nothing else does.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.work = self.folder / "works here"
        self.work.mkdir(exist_ok=True)
        self.store = RunStore(self.folder / NAME)
        self.code = 0
        self.stdout = self.stderr = ""
        self.process: subprocess.Popen[str] | None = None

    def begin(self, *arguments: str, first: str = "", real: bool = False) -> subprocess.Popen[str]:
        """Start it: forked from a program that has imported everything, or as a user does.

        Args:
            arguments: of `dynbench`; tiny settings are added.
            first: statements that a forked one runs first.
            real: as a user does.
        """
        words = [arguments[0], *SETS.get(arguments[0], SETS["train"]), *arguments[1:]]
        more: dict[str, Any] = {"env": environment(self.store.root), "cwd": self.work, "text": True}
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        if real:
            self.process = subprocess.Popen(command(words[0], *words[1:], settings=()), **more)
        else:
            line = command(words[0], *words[1:], settings=())
            self.process = ForkedPopen(line, forks=True, first=first, **more)
        return self.process

    def end(self) -> Command:
        """Wait for its end; nothing that it started is left then."""
        assert self.process is not None
        self.stdout, self.stderr = self.process.communicate(timeout=300)
        self.code = self.process.returncode
        self.nothing_left()
        return self

    def nothing_left(self, seconds: float = 60) -> None:
        """Nor after a while, where the command itself could not wait for what it had started."""
        wait_until(lambda: not in_folder(self.work) and not _group(self.process), "all processes to end", seconds)

    def ran(self, *arguments: str, first: str = "", real: bool = False) -> Command:
        """From its start to its end."""
        self.begin(*arguments, first=first, real=real)
        return self.end()

    @property
    def runs(self) -> list[Run]:
        """All that there are."""
        return self.store.list()

    @property
    def run(self) -> Run:
        """The last one."""
        return self.runs[-1]

    @property
    def error(self) -> dict[str, Any]:
        """What `--json` says."""
        return dict(json.loads(self.stdout)["error"])

    def wait_for_rows(self, count: int = 4, ranks: Sequence[int] = (0, 1)) -> Run:
        """Until every rank of the last run has written some."""
        wait_until(lambda: bool(self.runs) and all(_lines(self.run, rank) > count for rank in ranks), "the first rows")
        return self.run


def _lines(run: Run, rank: int) -> int:
    file = run.rank_file(rank)
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _group(process: subprocess.Popen[str] | None) -> bool:
    """Whether anything of the command's process group is there; one that ended and is not waited for is not."""
    assert process is not None
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == process.pid and fields[0] != "Z":
            return True
    return False


def check(
    ended: Command, code: int, status: Status, *says: str, rows: int | None = None, rank: int | None = None
) -> RunRecord:
    """Everything that has to hold after a fault, but for what is left running, which `Command.end` looks at.

    Args:
        ended: the command.
        code: how it exited.
        status: of its last run.
        says: what stands in its message.
        rows: of each rank, fewest; None where no step came to its end.
        rank: the one that the record blames.
    """
    assert ended.code == code, ended.stderr
    record = ended.run.record()
    assert ended.run.status is status
    assert "Traceback" not in ended.stderr
    if code > 0:
        assert record.exit_code == code
        assert ended.error["exit_code"] == code
        for each in says:
            assert each in ended.error["message"], ended.error
        assert "\n" not in ended.error["message"]
    if rank is not None:
        assert f"rank_{rank}.log" in ended.error["message"]
        assert (ended.run.logs_dir / f"rank_{rank}.log").is_file()
    if rows is not None:
        files = find_rank_files(ended.run.ranks_dir)
        for each, path in files.items():
            read = read_rank_file(each, path)
            assert read.rows is not None and read.rows.height >= rows and read.torn_lines <= 1
        assert len(files) == 2
        analyzed(ended)
    return record


def analyzed(ended: Command, *more: str) -> dict[str, Any]:
    """What `analyze` says of the last run: the next command works."""
    code, said = answered(ended.store.root, "analyze", ended.run.id, *more)
    assert code == 0, said
    return said


def answered(root: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of a command that launches nothing, in this process; figures are not made into pixels."""
    from dynbench.cli.main import main

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setenv("DYNBENCH_RESULTS", str(root))
        patch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **_: Path(path).write_bytes(png()))
        code = main([*arguments, "--json"])
    return code, json.loads(said.getvalue())


def worded(ended: Command) -> str:
    """How a command ended, for the table of faults."""
    return how_it_ended(ended.code, ended.run, ended.error["message"] if ended.code > 0 else "")


def how_it_ended(code: int, run: Run, message: str = "") -> str:
    """The same of any command: without what differs from run to run."""
    for text, short in ((str(run.path), "RUN"), (str(run.path.parent), "RESULTS")):
        message = message.replace(text, short)
    for each in ids_in(message):
        message = message.replace(each, "RUN")
    ended = signal.Signals(-code).name if code < 0 else f"exit {code}"
    return f"{ended}, {run.status}" + (f": {message}" if message else "")
