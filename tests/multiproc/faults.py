"""Commands that meet a fault, and what has to hold after every one of them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedPopen
from multiproc.launches import TINY, sets, wait_until
from pixel import png
from planted import in_folder

from dynbench.analysis.rank_files import find_rank_files, read_rank_file
from dynbench.engine.failure import CONNECTING, PREPARING
from dynbench.runs.run import Run, RunRecord, Status
from dynbench.runs.store import RunStore

NAME = "läufe, 'n results"
"""A results folder on a path with a space, a quote and a letter beyond ASCII."""
SETS = {
    "train": sets(*TINY),
    "bench": sets("operations=all_reduce", "backend=gloo", "sizes_mib=0.25,0.5", "iterations=3", "warmup=1"),
}
ENDLESS = ["--set", "train.steps=100000"]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
"""What a user who launches the ranks puts before a command."""
TWO_ARMS = "description: two\narms:\n  - {name: static}\n  - {name: partition, set: {schedule.mode: dynamic}}\n"
"""A recipe, but for its launches."""
PHASES = {
    "start": (CONNECTING, None, "while meeting the other ranks", None),
    "data": (PREPARING, None, "while preparing its data", None),
    "plan": ("plan", 0, "in plan of step 0", None),
    "first step": ("forward", 0, "in forward of step 0", None),
    "mid-run": ("backward", 4, "in backward of step 4", 3),
}
"""Phase and step, as `at` takes them, how a message says it, and the rows of a rank that lie before it."""
IMPATIENT = "import planted; planted.impatient_launcher(); "
AT_ONCE_S = 30
"""How long what a command has waited for may still be seen on a busy machine: what forks for it ends after it."""
ORPHANED_S = 180
"""How long ranks may take to notice that their launcher was killed: while they import, they do not look."""


@dataclass
class Command:
    """A command that works in a folder of its own, with its results beside.

    Args:
        folder: where it works; nothing else does.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.folder = self.folder.resolve()
        self.work = self.folder / "works here"
        self.work.mkdir(exist_ok=True)
        self.store = RunStore(self.folder / NAME)
        self.code = 0
        self.stdout = self.stderr = ""
        self.process: subprocess.Popen[str] | None = None

    def begin(
        self,
        *arguments: str,
        first: str = "",
        real: bool = False,
        bare: bool = False,
        under: Sequence[str] = (),
        figures: bool = False,
    ) -> subprocess.Popen[str]:
        """Start it: forked from a program that has imported everything, or as a user does.

        Args:
            arguments: of `dynbench`; `--json` is added, and tiny settings unless it resumes.
            first: statements that a forked one runs first.
            real: as a user does.
            bare: no settings are added.
            under: words before the command, as of torchrun.
            figures: `train` draws them, which takes longer than its steps.
        """
        bare = bare or "--resume" in arguments
        settings = [] if bare else SETS.get(arguments[0], SETS["train"])
        drawn = ["--no-figures"] if arguments[0] == "train" and not figures else []
        words = [arguments[0], "--json", *drawn, *settings, *arguments[1:]]
        line = [sys.executable, *under, "-m", "dynbench.cli.main", *words]
        env = {**os.environ, "DYNBENCH_RESULTS": str(self.store.root)}
        more: dict[str, Any] = {"env": env, "cwd": self.work, "text": True}
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        self.process = subprocess.Popen(line, **more) if real else ForkedPopen(line, forks=True, first=first, **more)
        return self.process

    def end(self) -> Command:
        """Wait for its end; nothing that it started is left then."""
        assert self.process is not None
        self.stdout, self.stderr = self.process.communicate(timeout=300)
        self.code = self.process.returncode
        self.nothing_left(ORPHANED_S if self.code == -signal.SIGKILL else AT_ONCE_S)
        return self

    def nothing_left(self, seconds: float) -> None:
        """Of all that works in its folder, its ranks among them."""
        wait_until(lambda: not in_folder(self.work), "all processes to end", seconds)

    def ran(self, *arguments: str, **how: Any) -> Command:
        """From its start to its end, forked; `how` as of `begin`."""
        self.begin(*arguments, **how)
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
    def said(self) -> dict[str, Any]:
        """The JSON object that it printed."""
        return dict(json.loads(self.stdout))

    @property
    def error(self) -> dict[str, Any]:
        """What it says of its failure."""
        return dict(self.said["error"])

    def wait_for_rows(self, count: int = 4, ranks: int = 2) -> list[int]:
        """Until every rank of the last run has written more than so many lines; how many rows each has."""

        def lines() -> list[int]:
            files = [self.run.rank_file(rank) for rank in range(ranks)]
            return [file.read_bytes().count(b"\n") if file.exists() else 0 for file in files]

        wait_until(lambda: bool(self.runs) and min(lines()) > count, "the first rows")
        return [number - 1 for number in lines()]


def check(
    ended: Command,
    code: int,
    status: Status,
    *says: str,
    rows: int | Sequence[int] | None = None,
    rank: int | None = None,
) -> RunRecord:
    """Everything that has to hold after a fault of `train`, but for what is left running, which `Command.end` looks at.

    Args:
        ended: the command.
        code: how it exited.
        status: of its last run.
        says: what stands in its message.
        rows: fewest of each rank, those that it had written before the fault; None where no step came to its end.
        rank: the one whose log the message and the record name.
    """
    record = settled(ended, ended.run, code, status, *says, rank=rank)
    if rows is not None:
        check_rows(ended.run, rows)
        analyzed(ended)
    return record


def settled(ended: Command, run: Run, code: int, status: Status, *says: str, rank: int | None = None) -> RunRecord:
    """What has to hold of any command: exit code, status, record and message, and that the next one knows the run."""
    assert ended.code == code, ended.stderr
    record = run.record()
    assert run.status is status
    assert "Traceback" not in ended.stderr, ended.stderr
    if code > 0:
        message = ended.error["message"]
        assert record.exit_code == code == ended.error["exit_code"]
        assert "\n" not in message and ended.error["hint"], ended.error
        for each in says:
            assert each in message, ended.error
        if rank is not None:
            log = Path(message.rpartition("; log: ")[2])
            assert log.name.endswith(f"rank_{rank}.log") and log.is_file(), message
    answer, said = printed_by(ended.store.root, "runs", "show", run.id)
    assert answer == 0 and said["run"]["status"] == status, said
    return record


def check_rows(run: Run, fewest: int | Sequence[int]) -> None:
    """Every rank's rows can be read, at least so many, and at most one line of them is torn."""
    files = find_rank_files(run.ranks_dir)
    assert sorted(files) == list(range(int(run.config().launch.nproc)))
    for rank, path in files.items():
        read = read_rank_file(rank, path)
        least = fewest if isinstance(fewest, int) else fewest[rank]
        assert read.rows is not None and read.rows.height >= least and read.torn_lines <= 1, (rank, read)


def analyzed(ended: Command, draws: bool = False) -> dict[str, Any]:
    """What `analyze` says of the last run: the next command works."""
    code, said = printed_by(ended.store.root, "analyze", ended.run.id, draws=draws)
    assert code == 0, said
    return said


def printed_by(root: Path, *arguments: str, draws: bool = False) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of a command that launches nothing, in this process; figures are not made into pixels.

    Drawing them takes longer than the rest of an analysis: `draws` is for what may be in their way.
    """
    from dynbench.cli.main import main

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setenv("DYNBENCH_RESULTS", str(root))
        patch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **_: Path(path).write_bytes(png()))
        if not draws:
            patch.setattr("dynbench.analysis.analyze.draw_figures", lambda *_, **__: [])
        code = main([*arguments, "--json"])
    return code, json.loads(said.getvalue())


def recipe_of(folder: Path, launches: str = "2") -> str:
    """The file of a recipe of two arms."""
    file = folder / "two.yaml"
    file.write_text(f"{TWO_ARMS}launches: {launches}\n", encoding="utf-8")
    return str(file)
