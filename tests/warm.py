"""Ranks that stay: processes of one group that run one function after the other, so that each costs no launch."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
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
    """Some ranks of a group.

    A job is a function of a module under `tests/` or of the package (it is sent by its name), called on every rank as
    `job(rank, *arguments)`. A rank on which it raises ends, as a launched one does.

    Args:
        folder: an empty one, where the ranks meet.
        world_size: their number.
        backend: of their group.
    """

    def __init__(self, folder: Path, world_size: int = 2, backend: str = "gloo") -> None:
        self._folder, self._world_size, self._backend, self._starts = folder, world_size, backend, 0
        self._pipes: list[Connection] = []
        self._processes: list[ForkedPopen] = []

    def _start(self) -> None:
        self._starts += 1
        for rank in range(self._world_size):
            here, there = Pipe()
            meet = self._folder / f"meet_{self._starts}"
            words = ["-m", "warm", there.fileno(), rank, self._world_size, meet, self._backend]
            with there:
                folder, files = Path(__file__).parent, [there.fileno()]
                self._processes.append(ForkedPopen([sys.executable, *words], cwd=folder, pass_fds=files))
            self._pipes.append(here)

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


def _serve(pipe: Connection, rank: int, world_size: int, meet: str, backend: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, f"file://{meet}", timedelta(seconds=PATIENCE_S), world_size, rank)
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
    _serve(Connection(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
