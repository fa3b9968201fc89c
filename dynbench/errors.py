"""The error tree and the exit codes of the command line.

Every error that a user can cause is one of these classes: one line that says what, where and which value, and a hint
that says what to do next. Anything else that escapes is a bug and exits with 1.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `dynbench --help` needs neither this nor difflib, and both take milliseconds
    from pathlib import Path

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_WORKER = 3
EXIT_MEMORY = 4
EXIT_INCOMPARABLE = 5
EXIT_CHECKS = 6
_SIGNALLED = 128
"""A process that a signal ended exits with this plus the signal's number."""
STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""System errors that say something about a disk or its permissions, not about dynbench."""
PATH_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
"""System errors that say that a path cannot be one."""


class DynbenchError(Exception):
    """Base of all errors shown to the user as one line instead of a traceback.

    Args:
        message: what happened, where, and the value seen; one line.
        hint: what to do about it; one line, may be empty.
    """

    kind: str = "error"
    exit_code: int = EXIT_BUG
    run_path: Path | None = None
    """Folder of the run that ended so, where there is one; its record is finished."""
    arm: int | None = None
    """Of a launch, the arm whose turn it was, by its position; None where that is not known."""
    result: Mapping[str, object] | None = None
    """What `--json` prints beside the error, where the command had its result before it failed."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Message and hint, as a traceback shows them; whoever shows the two apart takes the attributes."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def as_dict(self) -> dict[str, object]:
        """The `error` object that `--json` prints."""
        return {"kind": self.kind, "message": self.message, "hint": self.hint, "exit_code": self.exit_code}


class UsageError(DynbenchError):
    """A mistake in arguments, in data given by the user, or in where things are."""

    kind = "usage"
    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """One or more mistakes in a configuration, all reported at once.

    Args:
        problems: one line per mistake, each opening with `file:line` or a dotted key.
    """

    kind = "config"

    def __init__(self, problems: Sequence[str], hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems), hint)


class DataError(UsageError):
    """A data file that cannot be used; the message names file, line, and what was expected."""

    kind = "data"


class HubError(UsageError):
    """A model or dataset hub that cannot be reached, and nothing in its local cache."""

    kind = "hub"


class RunLookupError(UsageError):
    """A run reference that is unknown, ambiguous, malformed or already in use."""

    kind = "run"


class RecordError(UsageError):
    """A record file that this version cannot read (empty, torn beyond use, or of another schema)."""

    kind = "record"


class StorageError(UsageError):
    """A disk that is full, or a place that must not be written or read."""

    kind = "storage"


class BugError(DynbenchError):
    """Anything that is no error of the user's; what was raised is its `__cause__`."""

    kind = "bug"


class WorkerFailed(DynbenchError):
    """A rank ended with an error; the message names the rank and its log.

    Args:
        rank: the rank that failed first, where one is known.
        log: what it printed.
    """

    kind = "worker"
    exit_code = EXIT_WORKER

    def __init__(self, message: str, hint: str = "", *, rank: int | None = None, log: Path | None = None) -> None:
        super().__init__(message, hint)
        self.rank = rank
        self.log = log


class NothingFits(DynbenchError):
    """Out of memory, or capacities that cannot hold the work requested."""

    kind = "memory"
    exit_code = EXIT_MEMORY


class BatchTooLarge(NothingFits):
    """A global batch that the capacities cannot hold; a smaller one may fit."""


class ReplicasTooLarge(NothingFits):
    """Models of several arms that do not fit into one process; each may fit by itself."""


class NotComparable(DynbenchError):
    """Runs that differ in more than what is being compared; the message names the keys."""

    kind = "incomparable"
    exit_code = EXIT_INCOMPARABLE


class ChecksFailed(DynbenchError):
    """Checks found something and `--strict` was given.

    Args:
        result: the object that `--json` prints where nothing is found.
    """

    kind = "checks"
    exit_code = EXIT_CHECKS

    def __init__(self, message: str, hint: str = "", *, result: Mapping[str, object] | None = None) -> None:
        super().__init__(message, hint)
        self.result = result


class GateFailed(ChecksFailed):
    """A condition of `--fail-on` is met."""

    kind = "gate"


class LeakFound(DynbenchError):
    """Samples of a packed row see each other: what would be trained is not what was requested."""

    kind = "leak"
    exit_code = EXIT_CHECKS


class Interrupted(DynbenchError):
    """The run was stopped by a signal.

    Args:
        signum: the signal's number; the exit code is 128 plus it (130 for SIGINT, 143 for SIGTERM).
    """

    kind = "interrupted"

    def __init__(self, message: str, hint: str = "", *, signum: int) -> None:
        super().__init__(message, hint)
        self.signum = signum
        self.exit_code = _SIGNALLED + signum


class Terminated(KeyboardInterrupt):
    """A signal other than SIGINT asked the process to stop; what ends well on Ctrl-C ends well on it.

    Args:
        signum: the signal's number.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def user_error(error: BaseException) -> DynbenchError:
    """What an exception means to the user; one of these classes means itself."""
    if isinstance(error, DynbenchError):
        return error
    if isinstance(error, Terminated):
        return Interrupted(str(error), signum=error.signum)
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", signum=signal.SIGINT)
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _SIGNALLED:
        return user_error(Terminated(error.code - _SIGNALLED))
    if isinstance(error, BrokenPipeError):
        return Interrupted("nobody reads the output any more", signum=signal.SIGPIPE)
    if isinstance(error, OSError) and (number := _errno(error)) in STORAGE_ERRORS:
        where = error.filename or "output"
        hint = "dynbench doctor shows the space and what can be written."
        return StorageError(f"{where}: {os.strerror(number)}", hint)
    if isinstance(error, IsADirectoryError | NotADirectoryError) or (
        isinstance(error, OSError) and error.errno in PATH_ERRORS and error.filename is not None
    ):
        said = str(error) if error.filename is None else f"{error.filename}: {os.strerror(error.errno or 0)}"
        return UsageError(said, "Name another path, or remove what is there.")
    first, *_ = str(error).splitlines() or [""]
    return BugError(f"{type(error).__name__}: {first}")


def _errno(error: OSError) -> int:
    """The system's number, 0 for none; libraries written in Rust leave it in the text, as `(os error 28)`."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found is not None else error.errno or 0


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?` with the nearest known spelling, or an empty string when nothing is near."""
    near = nearest(given, known)
    return f"Did you mean '{near}'?" if near else ""


def unknown_name(message: str, given: str, known: Iterable[str], lead: str = "Known", end: str = "") -> UsageError:
    """The error of a name that is none of the known ones; its message ends with the nearest, the hint names all.

    Args:
        message: what is wrong, without a full stop.
        given: the name.
        known: those that there are.
        lead: what the hint calls them.
        end: what follows them there.
    """
    names = list(known)
    return UsageError(f"{message}. {did_you_mean(given, names)}".rstrip(), f"{lead}: {', '.join(names)}{end}.")


def nearest(given: str, known: Iterable[str]) -> str:
    """The nearest known spelling, or an empty string when nothing is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(given, list(known), n=1, cutoff=0.6)), "")


def first_line(error: BaseException) -> str:
    """The first line of an error's text; its class before texts of a word, and where there is none."""
    lines = str(error).strip().splitlines()
    text = lines[0].rstrip(" :") if lines else ""
    return text if " " in text else f"{type(error).__name__} {text}".rstrip()
