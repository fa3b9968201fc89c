"""Python programs that begin with torch and the package already imported: forked from a process that did it once.

A forked program is a fresh process with its own environment, arguments, files and exit code; what it does not pay is
the start of the interpreter and its imports, most of a tiny launch, and not what is under test. Programs whose
command line is looked for, or that are killed, are started in the ordinary way.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

WORKER, TRIAL = "dynbench.engine.rank.worker", "dynbench.probe.trial"
MODELS = ("transformers.models.distilbert.modeling_distilbert", "transformers.models.auto.modeling_auto")
PROGRAMS = (WORKER, TRIAL, "torch.distributed.run")
OURS = ("dynbench.sampler", "dynbench.experiment.training")
IMPORTED = (*MODELS, *PROGRAMS, *OURS, "torch.distributed.optim", "matplotlib.figure")
_SUBREAPER = 36
_LIMIT, _FILES = 1 << 20, 8
"""Of a request: bytes, and files that come with it."""


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen([python, …])`, forked; takes `-c`, `-m` or a file, `-u`, and no input.

    Args:
        args: the command line; its first word is not looked at.
        forks: whether the ranks and the trial processes that the program starts are forked as well.
        first: statements that run before the program, and hold for its ranks too.
        more: as of `Popen`.
    """

    def __init__(self, args: Sequence[str], *, forks: bool = False, first: str = "", **more: Any) -> None:
        self._forks, self._first = forks, first
        super().__init__(args, **more)

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        """Of `Popen`, which gives by position: `pass_fds`, `cwd`, `env` from 3, pipes from 9, the session at 20."""
        (passed, cwd, env), pipes, own_session = given[3:6], given[9:15], given[20]
        p2cread, c2pwrite, errwrite = pipes[0], pipes[3], pipes[5]
        request = {
            "args": [str(word) for word in args[1:]],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": own_session,
            "passed": list(passed),
            "forks": self._forks,
            "first": self._first,
        }
        files = [own if file == -1 else file for own, file in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = _forked(request, [*files, *passed])
        self._child_created = True
        self._close_pipe_fds(*pipes)


_ours: dict[int, socket.socket] = {}
"""By process, its end of a socket to the process that forks: a forked process has one of its own or none."""


def _forked(request: Mapping[str, object], files: Sequence[int]) -> int:
    """Process id of a new child of this process."""
    end = _connection()
    with _orphans_are_ours():
        socket.send_fds(end, [json.dumps(request).encode()], list(files))
        answer = json.loads(end.recv(_LIMIT) or '{"error": "the process that forks has ended"}')
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return int(answer["pid"])


def _connection() -> socket.socket:
    if os.getpid() not in _ours:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, __file__, str(there.fileno())],
            pass_fds=[there.fileno()],
            env={**os.environ, **one},
            start_new_session=True,
        )
        there.close()
        atexit.register(_end, here, process)
        _ours[os.getpid()] = here
    return _ours[os.getpid()]


def _end(here: socket.socket, process: subprocess.Popen[bytes]) -> None:
    here.close()
    process.wait(10)


@contextmanager
def _orphans_are_ours() -> Iterator[None]:
    """A process below this one whose parent ends becomes this one's child (prctl(2), Linux 3.4)."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_SUBREAPER, 0)


@contextmanager
def forked_ranks() -> Iterator[None]:
    """Inside it, ranks that torchrun starts in this process, and the trial processes of probes, are forked."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    from dynbench.probe import children

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SubprocessHandler, "_popen", _popen)
        # It searches all loaded modules, of which there are many here, at every event, for a log that is off.
        patch.setattr(dynamic_rendezvous, "get_method_name", str)
        patch.setattr(children, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": ForkedPopen}))
        yield


def _popen(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> ForkedPopen:
    return ForkedPopen(args, env=env, stdout=handler._stdout, stderr=handler._stderr, start_new_session=True)


def _serve(end: socket.socket) -> None:
    """Fork what is asked for, until nobody is left to ask."""
    while True:
        try:
            message, files, _, _ = socket.recv_fds(end, _LIMIT, _FILES)
        except ConnectionResetError:  # it was killed
            return
        if not message:
            return
        tasks = sum(1 for _ in Path("/proc/self/task").iterdir())
        if tasks > 1:
            end.send(json.dumps({"error": f"{tasks} threads: it is not safe to fork"}).encode())
            continue
        between = os.fork()
        if between == 0:
            here = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            while os.getppid() == here:
                time.sleep(1e-4)
            request = json.loads(message)
            if request["session"]:
                os.setsid()
            try:
                end.send(json.dumps({"pid": os.getpid()}).encode())
            except OSError:  # who asked was killed
                os._exit(1)
            end.close()
            _become(request, files)
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _become(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Be the program that was asked for, to its end."""
    numbers = (0, 1, 2, *request["passed"])
    away = [fcntl.fcntl(given, fcntl.F_DUPFD, 1 + max(numbers)) for given in files]
    for given in files:
        os.close(given)
    for number, given in zip(numbers, away, strict=True):
        os.dup2(given, number)
        os.close(given)
    sys.stdout = sys.__stdout__ = _stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace")  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    random.seed()
    code = 0
    try:
        exec(request["first"], {})
        if request["forks"]:
            _fork_for_this()
            with forked_ranks():
                _run(request["args"])
        else:
            _run(request["args"])
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        if isinstance(stopped.code, str):
            print(stopped.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _stream(number: int, errors: str) -> io.TextIOWrapper:
    """A standard stream of what is now behind its number; the ones that Python made know the old file's kind."""
    file = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    return io.TextIOWrapper(file, encoding="utf-8", errors=errors, line_buffering=number == 2)


def _fork_for_this() -> None:
    """A process of this program's own that forks for it; it ends with the program."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        _serve(there)
        os._exit(0)
    there.close()
    _ours[os.getpid()] = here


def _run(args: list[str]) -> None:
    """What the interpreter does with its command line."""
    while args[0] == "-u":
        args = args[1:]
    if args[0] == "-m":
        sys.argv, sys.path[0] = args[1:], ""
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[0] == "-c":
        sys.argv, sys.path[0] = args[1:], ""
        exec(args[1], {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = args, str(Path(args[0]).parent)
        runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    # The functions above are those of the module that a forked program imports, not of `__main__`.
    sys.path[0] = str(Path(__file__).parent)
    forked = importlib.import_module("forked")
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a forked process then need not copy what was imported to look for garbage
    for name in PROGRAMS:
        del sys.modules[name]
    forked._serve(socket.socket(fileno=int(sys.argv[1])))
