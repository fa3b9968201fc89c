"""The processes that run trials: one per rank, started for one search, driven over pipes, expendable.

A child that ends without an answer proves nothing about memory (it may have been killed from outside), so its silence
is reported as such and the whole group is replaced: the collectives of the survivors are broken anyway.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from dynbench.engine.launching.torchrun import thread_environment
from dynbench.errors import NothingFits, WorkerFailed
from dynbench.signals import held_back

log = logging.getLogger(__name__)

Reply = dict[str, Any]

TIDY_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Settings of glibc's allocator, mallopt(3)."""


class Children:
    """A group of trial processes, one per rank; use as a context manager.

    Args:
        spec: what every child needs to know, as JSON (see `prober.Prober`).
        world_size: ranks (G).
        threads: computing threads per rank.
        logs: folder of the children's standard error.
        timeout_s: longest wait for one answer.
        tidy: freed memory goes back to the system at once, so that a failed trial does not shrink the next one's room;
            slower, so not for timing.
    """

    def __init__(
        self,
        spec: Mapping[str, object],
        world_size: int,
        threads: int,
        logs: Path,
        timeout_s: float = 600.0,
        *,
        tidy: bool,
    ) -> None:
        self.world_size = world_size
        self.timeout_s = timeout_s
        self._spec = dict(spec)
        self._threads = threads
        self._tidy = tidy
        self._logs = logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: list[IO[bytes]] = []
        self._asked = ["get ready"] * world_size
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
        self._logs.mkdir(parents=True, exist_ok=True)
        environment = os.environ | thread_environment(self._threads) | (TIDY_MALLOC if self._tidy else {})
        for rank in range(self.world_size):
            spec = self._spec | {
                "rank": rank,
                "world_size": self.world_size,
                "parent": os.getpid(),
                "threads": self._threads,
                "rendezvous": f"file://{self._rendezvous.name}/store",
            }
            errors = self.log_of(rank).open("ab")
            self._files.append(errors)
            with held_back():  # a process that nobody knows of yet would be left behind
                child = subprocess.Popen(
                    [sys.executable, "-m", "dynbench.probe.child", json.dumps(spec)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                )
                self._processes.append(child)

    def _expect_ready(self) -> None:
        for rank, reply in enumerate(self._collect()):
            if reply is None:
                raise self._failed(rank, "its trial process ended before it was ready", "See its log.")
            if not reply.get("ready"):
                raise NothingFits(
                    f"probe: rank {rank}: {reply.get('message')}", "Raise the memory limit or take a smaller model."
                )
            self.gradient_bytes = reply["gradient_bytes"]

    def ask(self, requests: Sequence[Mapping[str, object]], *, together: bool = False) -> list[Reply | None]:
        """Send each rank its request, at once, and wait for all answers; None where a child ended without one.

        Args:
            requests: by rank.
            together: the ranks wait for each other on the way. When one has ended, the others' answers may never come:
                theirs are None too, and the group is of no more use.

        Raises:
            WorkerFailed: a child is there and does not answer, as it would not the next time.
        """
        self._asked = [str(request.get("op", "splits")) for request in requests]
        for process, request in zip(self._processes, requests, strict=True):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                log.debug("probe: a trial process was gone before it was asked")
        return self._collect(together=together)

    def ask_all(self, request: Mapping[str, object], *, together: bool = False) -> list[Reply | None]:
        """The same request to every rank, as `ask`."""
        return self.ask([request] * self.world_size, together=together)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid for process in self._processes]

    def _collect(self, *, together: bool = False) -> list[Reply | None]:
        """One line from each child; a rank that closed its pipe answers None.

        Raises:
            WorkerFailed: one is silent beyond the limit, though none has ended, for which it could be waiting.
        """
        replies: list[Reply | None] = [None] * self.world_size
        pending = dict.fromkeys(range(self.world_size), b"")
        deadline = time.monotonic() + self.timeout_s
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while pending and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(timeout=left):
                    rank = key.data
                    chunk = os.read(key.fd, 65536)
                    pending[rank] += chunk
                    if not chunk or pending[rank].endswith(b"\n"):
                        selector.unregister(key.fileobj)
                        line = pending.pop(rank)
                        replies[rank] = self._understood(rank, line) if line.endswith(b"\n") else None
                        if replies[rank] is None:
                            self.gone.append(rank)
                            if together:
                                return replies
        if pending and all(replies[rank] is not None for rank in range(self.world_size) if rank not in pending):
            self._refuse_silent(sorted(pending))
        return replies

    def _refuse_silent(self, ranks: Sequence[int]) -> NoReturn:
        """Name the ranks that hang; several may wait for one of them."""
        first, names = ranks[0], " and ".join(map(str, ranks))
        log = self.log_of(first)
        raise WorkerFailed(
            f"probe: rank {names} hung in {self._asked[first]!r}: no answer for {self.timeout_s:g} s "
            f"(launch.timeout_s); log: {log}",
            "Where it is slow and does not hang, raise launch.timeout_s.",
            rank=first,
            log=log,
        )

    def _understood(self, rank: int, line: bytes) -> Reply:
        """A child's answer; a fault that another try would meet again ends the search.

        Raises:
            WorkerFailed: there is such a fault.
        """
        reply: Reply = json.loads(line)
        if "fault" in reply:
            raise self._failed(rank, str(reply["fault"]))
        return reply

    def gone_without_answer(self, what: str, hint: str) -> WorkerFailed:
        """Of the first rank whose trial process ended, with its log.

        Args:
            what: ended, or how.
            hint: what to do.
        """
        return self._failed(self.gone[0], what, hint)

    def _failed(self, rank: int, what: str, hint: str = "") -> WorkerFailed:
        log = self.log_of(rank)
        return WorkerFailed(f"probe: rank {rank}: {what}; log: {log}", hint, rank=rank, log=log)

    def log_of(self, rank: int) -> Path:
        """What the trial process of a rank prints."""
        return self._logs / f"probe_rank_{rank}.log"

    def close(self) -> None:
        """End every child, gently where it listens, and leave none behind."""
        for process in self._processes:
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for file in self._files:
            file.close()
        self._processes, self._files = [], []
        self._rendezvous.cleanup()
