"""The processes that run trials: one per rank, within a budget of memory, started for one search, expendable.

A child that ends without an answer proves nothing about memory (it may have been killed from outside), so that this
is reported as such and the whole group is replaced: the collectives of the survivors are broken anyway.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any

from dynbench.config.ranks import server_copies
from dynbench.config.schema import Config, Launch, decided
from dynbench.engine.launching.resolve import Resolved
from dynbench.engine.launching.torchrun import thread_environment
from dynbench.errors import NothingFits, WorkerFailed
from dynbench.runs.provenance import ROOT, memory_mb
from dynbench.runs.run import Run
from dynbench.signals import held_back
from dynbench.units import BYTES_PER_MB, parse_bytes

Reply = dict[str, Any]
Report = Callable[[str], None]
"""Called with what is done, a line at a time."""

RESERVE = 0.15
"""Part of a CPU host's available memory that the default budget leaves alone."""
TIDY_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Settings of glibc's allocator, mallopt(3)."""


@dataclass(eq=False)
class Children:
    """A group of trial processes, one per rank; use as a context manager.

    Args:
        run: what is tried, and the folder for what the processes print.
        launch: of its resolved configuration.
        world_size: ranks (G).
        memory_limit_bytes: of a process on a CPU; None for no limit.
        splits: steps in several micro-batches are timed, and nothing else.
        tidy: freed memory goes back to the system at once, so that a failed trial does not shrink the next one's room;
            slower, so not for timing.
    """

    run: Run
    launch: Launch
    world_size: int
    memory_limit_bytes: int | None = None
    splits: bool = False
    tidy: bool = False

    def __post_init__(self) -> None:
        self.timeout_s = float(self.launch.timeout_s)
        """Longest wait for one answer."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._request = "get ready"
        self.gone: list[int] = []
        """Ranks whose processes ended without an answer, in the order in which that was seen."""
        self.gradient_bytes = 0
        self._rendezvous = tempfile.TemporaryDirectory(prefix="dynbench-probe-")

    def __enter__(self) -> Children:
        try:
            self._start()
            self._expect_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        environment = os.environ | thread_environment(decided(self.launch.threads)) | (TIDY_MALLOC if self.tidy else {})
        for rank in range(self.world_size):
            place = {"run": str(self.run.path), "rank": rank, "world_size": self.world_size, "parent": os.getpid()}
            tried = {"memory_limit_bytes": self.memory_limit_bytes, "splits": self.splits}
            spec = place | tried | {"rendezvous": f"file://{self._rendezvous.name}/store"}
            # A process that nobody knows of yet would be left behind by a signal.
            with held_back(), self.log_of(rank).open("ab") as log:
                self.start_process([sys.executable, "-m", "dynbench.probe.trial", json.dumps(spec)], log, environment)

    def start_process(self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> None:
        """Start the process of the next rank: `command`, with the descriptor of its connection as a last argument."""
        ours, theirs = Pipe()
        self._connections.append(ours)
        with theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            self._processes.append(process)

    def _expect_ready(self) -> None:
        for rank, reply in enumerate(self._collect()):
            if reply is None:
                raise self.failed(rank, "its trial process ended before it was ready", "See its log.")
            if not reply.get("ready"):
                raise NothingFits(
                    f"probe: rank {rank}: {reply.get('message')}", "Raise the memory limit or take a smaller model."
                )
            self.gradient_bytes = reply["gradient_bytes"]

    def ask(self, requests: Sequence[Mapping[str, object]], *, collective: bool = False) -> list[Reply | None]:
        """Send each rank its request, at once, and wait for all answers; None where a child ended without one.

        Args:
            requests: by rank.
            collective: the ranks wait for each other on the way. When one has ended, the others' answers may never
                come: theirs are None too, and the group is of no more use.

        Raises:
            WorkerFailed: a child is there and does not answer, as it would not the next time.
        """
        self._request = str(requests[0]["op"])
        for connection, request in zip(self._connections, requests, strict=True):
            with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, as its answer will show
                connection.send(request)
        return self._collect(collective=collective)

    def ask_all(self, request: Mapping[str, object], *, collective: bool = False) -> list[Reply | None]:
        """The same request to every rank, as `ask`."""
        return self.ask([request] * self.world_size, collective=collective)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid for process in self._processes]

    def _collect(self, *, collective: bool = False) -> list[Reply | None]:
        """One answer from each child; None of a rank whose process has ended.

        Raises:
            WorkerFailed: one met a fault, or does not answer within the limit, though none has ended, for which it
                could be waiting.
        """
        replies: list[Reply | None] = [None] * self.world_size
        pending = dict(zip(self._connections, range(self.world_size), strict=True))
        deadline = time.monotonic() + self.timeout_s
        gone = False
        while pending and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(pending), timeout=left):
                assert isinstance(connection, Connection)
                rank = pending.pop(connection)
                try:
                    reply: Reply = connection.recv()
                except (EOFError, ConnectionResetError):
                    gone = True
                    self.gone.append(rank)
                    if collective:
                        return replies
                    continue
                if "fault" in reply:  # another try would meet it again
                    raise self.failed(rank, str(reply["fault"]))
                replies[rank] = reply
        if pending and not gone:
            first, *others = sorted(pending.values())  # several may wait for one of them
            names = " and ".join(map(str, (first, *others)))
            log = self.log_of(first)
            raise WorkerFailed(
                f"probe: rank {names} hung in {self._request!r}: no answer for {self.timeout_s:g} s "
                f"(launch.timeout_s); log: {log}",
                "Where it is slow and does not hang, raise launch.timeout_s.",
                rank=first,
                log=log,
            )
        return replies

    def failed(self, rank: int, what: str, hint: str = "") -> WorkerFailed:
        """The error of a rank's trial process, with its log."""
        log = self.log_of(rank)
        return WorkerFailed(f"probe: rank {rank}: {what}; log: {log}", hint, rank=rank, log=log)

    def log_of(self, rank: int) -> Path:
        """What the trial process of a rank prints."""
        return self.run.logs_dir / f"probe_rank_{rank}.log"

    def close(self) -> None:
        """End every child, gently where it listens, and leave none behind."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes, self._connections = [], []
        self._rendezvous.cleanup()


StartChildren = Callable[[], AbstractContextManager[Children]]


def memory_limit_bytes(resolved: Resolved) -> int | None:
    """The budget of one trial process on a CPU; None on GPUs, where a fraction is set instead.

    Raises:
        UnknownFactError: the system does not say what is available.
    """
    config = resolved.config
    if config.launch.device == "cuda":
        return None
    if config.probe.memory_limit is None:
        return default_cpu_limit_bytes(decided(config.launch.nproc))
    return parse_bytes(config.probe.memory_limit)


def default_cpu_limit_bytes(world_size: int, root: Path = ROOT) -> int:
    """An equal share, per rank, of the memory that is available now within the container's limit, less a reserve.

    Args:
        world_size: ranks (G).
        root: where `/proc` and `/sys` are.

    Raises:
        UnknownFactError: the system does not say.
    """
    available = memory_mb(root)["available"]
    assert available is not None
    return int(available * BYTES_PER_MB * (1 - RESERVE) / world_size)


def served_mb(config: Config, parameters_mb: float, limit_mb: float | None) -> float | None:
    """Memory that a rank that serves needs, by the size of the parameters that are trained; None where none does.

    Args:
        config: its strategy and optimizer.
        parameters_mb: of one copy, MB.
        limit_mb: what a process may use; None where that is not known.

    Raises:
        NothingFits: it is more than that.
    """
    needed = server_copies(config) * parameters_mb
    if limit_mb is not None and needed > limit_mb:
        raise NothingFits(
            f"probe: a server of sync.name {config.sync.name!r} holds {needed:,.0f} MB of parameters, gradients and "
            f"optimizer state, more than the {limit_mb:,.0f} MB of a process",
            "Raise the memory limit (--memory-limit), or take a smaller model or another strategy.",
        )
    return needed or None
