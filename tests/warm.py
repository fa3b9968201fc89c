"""Ranks that stay: processes of one gloo group that run one function after the other, so that each costs no launch."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Literal

import pytest
from forked import ForkedPopen

PATIENCE_S = 240
"""Longer than any job takes; a rank that says nothing for so long hangs."""


class RankError(Exception):
    """What a job raised on some ranks, which have ended; `errors` holds the text of each by rank."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in errors.items()))
        self.errors = errors


class WarmRanks:
    """Some ranks of a gloo group.

    A job is a function of a module under `tests/` or of the package (it is sent by its name), called on every rank as
    `job(rank, *arguments)`. A rank on which it raises ends, as a launched one does.

    Args:
        folder: an empty one, where the ranks meet.
        world_size: their number.
    """

    def __init__(self, folder: Path, world_size: int = 2) -> None:
        self._folder, self._world_size, self._starts = folder, world_size, 0
        self._pipes: list[Connection] = []
        self._processes: list[ForkedPopen] = []

    def _start(self) -> None:
        self._starts += 1
        with Listener(family="AF_UNIX") as talk:
            talk._listener._socket.settimeout(PATIENCE_S)
            for rank in range(self._world_size):
                meet = self._folder / f"meet_{self._starts}"
                arguments = ["-m", "warm", str(talk.address), str(rank), str(self._world_size), str(meet)]
                self._processes.append(ForkedPopen([sys.executable, *arguments], cwd=Path(__file__).parent))
                self._pipes.append(talk.accept())

    def __call__(self, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The job's results by rank; starts the ranks where there are none, at first and after an error.

        Raises:
            RankError: it raised somewhere.
            TimeoutError: a rank hangs.
        """
        if not self._pipes:
            self._start()
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps((job, arguments)))
        results, errors = [], {}
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(PATIENCE_S):
                self.close()
                raise TimeoutError(f"rank {rank} hangs in {job.__name__}")
            try:
                good, result = pickle.loads(pipe.recv_bytes())
            except EOFError:
                good, result = False, "ended without a word"
            results.append(result)
            if not good:
                errors[rank] = result
        if errors:
            self.close()
            raise RankError(errors)
        return results

    def close(self) -> None:
        """End the ranks."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        self._pipes, self._processes = [], []


def gloo_ranks(number: int, scope: Literal["module", "session"] = "session") -> Any:
    """A fixture of so many warm ranks."""

    @pytest.fixture(scope=scope)
    def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
        warm = WarmRanks(tmp_path_factory.mktemp("meet"), number)
        yield warm
        warm.close()

    return made


def _serve(pipe: Connection, rank: int, world_size: int, meet: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meet}", rank=rank, world_size=world_size, timeout=timedelta(seconds=PATIENCE_S)
    )
    code = 0
    while code == 0:
        try:
            job, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            break
        try:
            answer = (True, job(rank, *arguments))
        except BaseException:
            answer, code = (False, traceback.format_exc()), 1
        pipe.send_bytes(pickle.dumps(answer))
    os._exit(code)


if __name__ == "__main__":
    _serve(Client(sys.argv[1], "AF_UNIX"), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
