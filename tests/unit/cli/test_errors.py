"""Message and hint of an error: both in its text, apart on the command line and in every record, never twice."""

from __future__ import annotations

import errno
import importlib
import inspect
import pkgutil
import tempfile
from types import SimpleNamespace

import click
import pytest

import dynbench
from dynbench.cli import main as main_module
from dynbench.engine.failure import read_failures, record_failure, root_cause
from dynbench.errors import BugError, ConfigError, DynbenchError, UsageError, user_error
from dynbench.runs.run import Run

MESSAGE, HINT = "schedule.window: 0", "Give a whole number of at least 1."


def kinds(base: type[DynbenchError] = DynbenchError) -> list[type[DynbenchError]]:
    """All error classes of the package, those of its commands too."""
    for module in pkgutil.walk_packages(dynbench.__path__, "dynbench."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [base]
    for kind in found:
        found += [below for below in kind.__subclasses__() if below not in found]
    return found


KINDS = kinds()
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def made(kind: type[DynbenchError], message: str = MESSAGE, hint: str = HINT) -> DynbenchError:
    extra = {"signum": 15} if "signum" in inspect.signature(kind).parameters else {}
    return kind([message] if kind is ConfigError else message, hint, **extra)  # type: ignore[arg-type]


@EACH
def test_the_text_of_an_error_has_its_hint(kind):
    assert (str(made(kind)), str(made(kind, hint=""))) == (f"{MESSAGE}\nhint: {HINT}", MESSAGE)
    later = made(kind, hint="")
    later.hint = HINT
    assert HINT in str(later)


ENDINGS = [
    *((made(kind), made(kind).exit_code, kind.kind, MESSAGE) for kind in KINDS),
    (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
    (click.Abort(), 130, "interrupted", "interrupted"),
    (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "storage", "x: Permission denied"),
    (OSError("No space left on device (os error 28)"), 2, "storage", "output: No space left on device"),
]


@pytest.mark.parametrize(("error", "code", "kind", "message"), ENDINGS, ids=lambda each: type(each).__name__)
def test_the_command_line_shows_message_and_hint_apart(error, code, kind, message, monkeypatch, cli, tmp_path):
    @click.command()
    @click.option("--json", is_flag=True)
    def command(json: bool) -> None:
        raise error

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(main_module, "import_module", lambda name: SimpleNamespace(train=command))
    said = cli("train --json", code=code)
    hint = said.json["error"]["hint"]
    assert said.json["error"] == {"kind": kind, "message": message, "hint": hint, "exit_code": code}
    assert said.err.strip().splitlines() == [f"error: {message}", *[f"hint: {hint}"] * bool(hint)]
    if isinstance(error, DynbenchError):
        bug = "This is a bug in dynbench; the traceback is in {}, --debug prints it."
        kept = [bug.format(file) for file in tmp_path.iterdir()]
        assert hint == " ".join([*kept, HINT]) and len(kept) == isinstance(error, BugError)


@EACH
def test_a_rank_records_them_apart(kind, tmp_path):
    run = Run(tmp_path / "a-run")
    run.ranks_dir.mkdir(parents=True)
    record_failure(run, 0, made(kind))
    (failure,) = read_failures(run)
    assert (failure.message, failure.hint) == (MESSAGE, HINT)
    reported = root_cause(run, {0: 1})
    assert reported.hint == HINT and "hint:" not in reported.message
    assert str(reported).count(HINT) == 1


def test_a_path_that_cannot_be_one_is_a_mistake_of_whoever_gave_it(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / ("a" * 300), tmp_path / "file" / "below", tmp_path / "loop", tmp_path):
        with pytest.raises(OSError) as caught:
            path.read_text()
        assert isinstance(user_error(caught.value), UsageError) and str(path) in user_error(caught.value).message
    assert isinstance(user_error(IsADirectoryError(f"expected a file; {tmp_path} is a directory")), UsageError)
