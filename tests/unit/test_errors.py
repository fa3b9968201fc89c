"""Message and hint of an error: both in its text, apart on the command line and in every record, never twice."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import tempfile
from pathlib import Path
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


def made(kind: type[DynbenchError], message: str = MESSAGE, hint: str = HINT) -> DynbenchError:
    wanted = inspect.signature(kind).parameters
    extra = {"signum": 15} if "signum" in wanted else {}
    return kind([message] if kind is ConfigError else message, hint, **extra)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[DynbenchError]:
    found: type[DynbenchError] = request.param
    return found


def test_the_text_of_an_error_has_its_hint(kind: type[DynbenchError]) -> None:
    assert str(made(kind)) == f"{MESSAGE}\nhint: {HINT}"
    assert str(made(kind, hint="")) == MESSAGE
    later = made(kind, hint="")
    later.hint = HINT
    assert HINT in str(later)


def test_the_command_line_shows_them_apart(
    kind: type[DynbenchError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    @click.command()
    @click.option("--json", is_flag=True)
    def command(json: bool) -> None:
        raise made(kind)

    monkeypatch.setattr(main_module, "import_module", lambda name: SimpleNamespace(train=command))
    code = main_module.main(["train", "--json"])
    printed = capsys.readouterr()
    hint = HINT
    if kind is BugError:
        (traceback,) = tmp_path.glob("dynbench-bug-*")
        hint = f"This is a bug in dynbench; the traceback is in {traceback}, --debug prints it. {HINT}"
    assert printed.err.splitlines() == [f"error: {MESSAGE}", f"hint: {hint}"]
    assert json.loads(printed.out)["error"] == {
        "kind": kind.kind,
        "message": MESSAGE,
        "hint": hint,
        "exit_code": code,
    }


def test_a_rank_records_them_apart(kind: type[DynbenchError], tmp_path: Path) -> None:
    run = Run(tmp_path / "a-run")
    run.ranks_dir.mkdir(parents=True)
    record_failure(run, 0, made(kind))
    (failure,) = read_failures(run)
    assert (failure.message, failure.hint) == (MESSAGE, HINT)
    reported = root_cause(run, {0: 1})
    assert reported.hint == HINT and "hint:" not in reported.message
    assert str(reported).count(HINT) == 1


def test_several_problems_keep_a_line_each() -> None:
    error = ConfigError(["a: 1", "b: 2"], HINT)
    assert str(error).splitlines() == ["a: 1", "b: 2", f"hint: {HINT}"]
    assert error.problems == ("a: 1", "b: 2")


def test_a_path_that_cannot_be_one_is_a_mistake_of_whoever_gave_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / ("a" * 300), tmp_path / "file" / "below", tmp_path / "loop", tmp_path):
        with pytest.raises(OSError) as caught:
            path.read_text()
        assert isinstance(user_error(caught.value), UsageError) and str(path) in user_error(caught.value).message
    assert isinstance(user_error(IsADirectoryError(f"expected a file; {tmp_path} is a directory")), UsageError)
