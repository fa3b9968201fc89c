"""`dynbench tensorboard`, and scalars that are asked for without the package."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest

from dynbench.cli import trained as module
from dynbench.engine.rank.evaluation import SCALARS_FOLDER
from dynbench.errors import Terminated, UsageError
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

ADDRESS = "http://localhost:6007/"


@pytest.fixture
def argv(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A package that only remembers what it was started with; Ctrl-C comes at once."""
    given: list[str] = []
    board = Mock(configure=lambda argv: given.__setitem__(slice(None), argv), launch=lambda: ADDRESS)
    program = SimpleNamespace(TensorBoard=lambda: board, TensorBoardServerException=OSError)
    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace(program=program))
    monkeypatch.setitem(sys.modules, "tensorboard.program", program)
    monkeypatch.setattr(module, "wait_for_ctrl_c", Mock(side_effect=KeyboardInterrupt))
    return given


def trained(store: RunStore, name: str, *, writes: bool = True, **record: str) -> Run:
    run = store.create("train", "static", name=name)
    run.update(**record)
    if writes:
        (run.path / SCALARS_FOLDER).mkdir()
    return run


def test_it_shows_the_runs_named_or_all_that_have_scalars(store, argv, cli):
    runs = trained(store, "a"), trained(store, "b")
    trained(store, "c", writes=False)
    first, second = (f"{run.label}:{run.path.resolve() / SCALARS_FOLDER}" for run in runs)
    assert cli("tensorboard b").out == f"{ADDRESS}  1 run; Ctrl-C ends it\n"
    assert argv[1:] == ["--logdir_spec", second, "--host", "localhost"]
    assert cli("tensorboard --json --port 6010").json["address"] == ADDRESS
    assert argv[2] == f"{first},{second}" and argv[-2:] == ["--port", "6010"]
    assert cli("tensorboard -q").out == f"{ADDRESS}\n"


def test_a_comparison_means_what_was_launched_for_it(store, argv, cli):
    comparison = store.create("compare", "two", name="cmp")
    arm = trained(store, "arm", group=comparison.id)
    trained(store, "another")
    cli("tensorboard cmp")
    assert argv[2] == f"arm:{arm.path.resolve() / SCALARS_FOLDER}"


def test_a_path_that_it_would_read_as_two_is_refused(tmp_path, argv):
    with pytest.raises(UsageError, match="comma"):
        module.serve({"a": tmp_path / "one, two"}, "localhost", None)
    assert not argv


def test_a_signal_that_asks_to_stop_is_no_ctrl_c(store, argv, cli, monkeypatch):
    trained(store, "a")
    monkeypatch.setattr(module, "wait_for_ctrl_c", Mock(side_effect=Terminated(15)))
    cli("tensorboard", code=143)


@pytest.mark.parametrize("needed", [None, "a_module_of_old"])
def test_without_the_package_or_what_it_needs_it_is_one_line(store, tmp_path, cli, monkeypatch, needed):
    trained(store, "a")
    package = ModuleType("tensorboard")
    package.__path__ = [str(tmp_path)]
    (tmp_path / "program.py").write_text(f"import {needed}\n", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "tensorboard", package if needed else None)
    error, hint = cli("tensorboard", code=2).err.splitlines()
    assert error.startswith("error: the package tensorboard cannot be imported: ") and (needed or "") in error
    assert hint == "hint: pip install --upgrade tensorboard."
