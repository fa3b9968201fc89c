"""Input that nobody should give, made of input that is right, and what a command does when it gets it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st

from dynbench.cli import main as main_module
from dynbench.errors import UsageError

LONGEST_S = 60
"""A command that takes longer on so small an input hangs."""
CODES = (0, 2, 3, 4, 5, 6)
"""A valid run, or one of the documented ends; never 1, which is a bug."""
LAUNCHED = "the ranks would be launched"

JUNK = (
    *("", " ", "~", "null", "true", "auto", "-1", "0", "1", "0.5", "-0.0", "1e999", "NaN", "Infinity", ".nan", ".inf"),
    *("2147483647", "2147483648", "9" * 30, "9" * 5_000, "0x" + "f" * 40, "1_000", "١٢", "12:30", "2026-01-01"),
    *("[]", "{}", "[1]", "[[1, [2]]]", "{a: 1}", "[" * 3_000, "{a: " * 40 + "1" + "}" * 40, '"', "'", "a: b: c", "\t"),
    *("!!python/object/apply:os.system ['touch pwned']", "!!binary aGk=", "&a [*a, *a]", "<<: *nothing", "--- ---"),
    *("../../outside", "/etc/passwd", "/dev/zero", "~/x", "a" * 300, "a/b", ".", "..", "https://example.org/x", "*"),
    *("\x1b[31mred\x1b[0m", "[red]bold[/bold]", "<script>alert(1)</script>", "](javascript:alert(1))", "a|b"),
    *("$\\frac$", "\u202eabc", "é\u0301", "\U0001f600", '"\\ud800"', '"\\u0000"', "{{ x }}", "{0}", "%s"),
)
"""What stands in place of a value."""
_PARTS = {"line": rb".*\n", "number": rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", "word": rb"[A-Za-z_][\w.-]*"}
_DONE = ("cut", "drop", "flip", "insert", "line", *["number", "word"] * 3)


def junk() -> st.SearchStrategy[str]:
    return st.sampled_from(JUNK) | st.text(max_size=8) | st.integers(-(2**70), 2**70).map(str) | st.floats().map(str)


def number() -> st.SearchStrategy[str]:
    return st.sampled_from(JUNK[:26]) | st.integers(-3, 40).map(str) | st.integers(-(2**70), 2**70).map(str)


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with one to three mistakes in them: a part is gone, there twice, or another stands in its place."""
    for _ in range(draw(st.integers(1, 3))):
        done = draw(st.sampled_from(_DONE))
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        if done in _PARTS:
            found = [match.span() for match in re.finditer(_PARTS[done], content)]
            first, last = draw(st.sampled_from(found or [(0, 0)]))
        first, last = {"cut": (first, len(content)), "flip": (first, first + 1)}.get(done, (first, last))
        if done in ("cut", "drop"):
            other = b""
        elif done == "flip":
            other = draw(st.binary(min_size=1, max_size=1))
        elif done == "line":
            other = 2 * content[first:last]
        else:
            other = draw(number() if done == "number" else junk()).encode(errors="surrogatepass")
        content = content[:first] + other + content[first if done == "insert" else last :]
    return content


def spoil_file(draw: st.DrawFn, path: Path, others: Sequence[Path], outside: Path) -> None:
    """Do something to a file of a run folder."""
    content, foreign = path.read_bytes(), draw(st.sampled_from(others)).read_bytes()
    elsewhere = draw(st.sampled_from([outside / "precious", Path("/dev/zero"), outside / "nothing"]))
    done: dict[str, Callable[[], object]] = {
        "content": lambda: path.write_bytes(draw(spoilt(content))),
        "gone": lambda: None,
        "empty": path.touch,
        "foreign": lambda: path.write_bytes(foreign),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "loop": lambda: path.symlink_to(path.parent.parent),
        "link out": lambda: path.symlink_to(elsewhere),
    }
    path.unlink()
    done[draw(st.sampled_from([*["content"] * 3, *done]))]()


@dataclass(frozen=True)
class Answer:
    """What a command ended with."""

    code: int
    out: str
    err: str


class Hung(BaseException):
    """A command takes too long."""


_touched: list[str] | None = None
"""What is done outside of the folders that a command may write in; None while nothing is watched."""
_allowed: tuple[str, ...] = ()
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")
_RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class", "socket.connect")
_HARMLESS = ("git", "fc-list", "lscpu", "nvidia-smi", "ldconfig", "uname")
"""Programs that provenance asks."""


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _touched is None:
        return
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, int) or path is None:
            return
        if any(sign in mode for sign in "wax+") if isinstance(mode, str) else int(str(flags)) & _WRITES:
            _note(event, path)
    elif event in _CHANGES:
        for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
            _note(event, path)
    elif event in _RUNS or (event == "subprocess.Popen" and Path(str(arguments[0])).name not in _HARMLESS):
        _touched.append(f"{event} {arguments!r}")


def _note(event: str, path: object) -> None:
    if isinstance(path, int):
        return
    place = str(Path(os.fsdecode(path)).absolute())  # type: ignore[arg-type]
    if not place.startswith(_allowed) and "__pycache__" not in place and _touched is not None:
        _touched.append(f"{event} {place}")


_watching = False


@contextmanager
def watched(*allowed: Path) -> Iterator[list[str]]:
    """What is written, removed, run or connected to meanwhile, but for files below some folders."""
    global _touched, _allowed, _watching
    if not _watching:
        sys.addaudithook(_watch)
        _watching = True
    temporary = tempfile.gettempdir()
    _allowed = ("/dev/", f"{temporary}/dynbench-", f"{temporary}/torchinductor_", *(f"{path}" for path in allowed))
    _touched = []
    try:
        yield _touched
    finally:
        _touched = None


def _hang(*_: object) -> None:
    raise Hung


def run(*words: str) -> Answer:
    """What a command prints, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main_module.main(list(words))
    return Answer(code, out.getvalue(), err.getvalue())


def answer(words: Sequence[str], *allowed: Path) -> Answer:
    """What the command line answers, in this process.

    Raises:
        AssertionError: an end that is not documented, a traceback, or something done where nothing may be.
        Hung: it takes too long.
    """
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(LONGEST_S)
    try:
        with watched(*allowed) as touched:
            said = run(*words)
    finally:
        signal.alarm(0)
    assert said.code in CODES, (words, said)
    assert "Traceback" not in said.err, (words, said.err)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said.out + said.err.replace("\r", "")), (words, said)
    assert not touched, (words, touched)
    return said


def copied(template: Path, work: Path) -> Path:
    """A fresh copy of a results folder, in place of the one before."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(template, work, symlinks=True)
    return work


def settled(patch: pytest.MonkeyPatch, here: Path) -> None:
    """The working folder, and no way out of it.

    What is no error of the user's is raised again, and what would launch ranks ends there as a mistake does.
    """

    def reraise(*_: object) -> None:
        raise

    def launched(*_: object, **__: object) -> None:
        raise UsageError(LAUNCHED)

    patch.setattr(main_module, "_keep_traceback", reraise)
    starts = "engine.launching.torchrun.run_torchrun engine.rank.toy_check.check_strategies probe.prober.probe"
    for place in starts.split():
        patch.setattr(f"dynbench.{place}", launched)
    patch.chdir(here)
    for name, folder in {"DYNBENCH_RESULTS": "", "DYNBENCH_CACHE": "cache", "MPLCONFIGDIR": "matplotlib"}.items():
        patch.setenv(name, str(here / "results" / folder))
    patch.setenv("HF_HUB_OFFLINE", "1")
