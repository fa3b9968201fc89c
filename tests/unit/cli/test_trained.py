"""`dynbench tensorboard`, and scalars that are asked for without the package."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from dynbench.cli import trained as module
from dynbench.cli.main import main
from dynbench.engine.rank.evaluation import SCALARS_FOLDER
from dynbench.errors import Terminated
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Output = pytest.CaptureFixture[str]


@pytest.fixture
def argv(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A package that only remembers what it was started with; Ctrl-C comes at once."""
    given: list[str] = []

    class TensorBoardServerException(Exception):
        pass

    class TensorBoard:
        def configure(self, argv: Sequence[str]) -> None:
            given[:] = argv

        def launch(self) -> str:
            if "1" in given:
                raise TensorBoardServerException("port 1 is not ours")
            return "http://localhost:6007/"

    package, program = ModuleType("tensorboard"), ModuleType("tensorboard.program")
    package.program = program  # type: ignore[attr-defined]
    program.TensorBoard = TensorBoard  # type: ignore[attr-defined]
    program.TensorBoardServerException = TensorBoardServerException  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", package)
    monkeypatch.setitem(sys.modules, "tensorboard.program", program)
    monkeypatch.setattr(module, "wait_for_ctrl_c", Mock(side_effect=KeyboardInterrupt))
    return given


def trained(store: RunStore, name: str, *, writes: bool = True, group: str | None = None) -> Run:
    run = store.create("train", "static", name=name)
    if group is not None:
        run.update(group=group)
    if writes:
        (run.path / SCALARS_FOLDER).mkdir()
    return run


def test_it_shows_the_runs_named_or_all_that_have_scalars(store: RunStore, argv: list[str], capsys: Output) -> None:
    first, second = trained(store, "a"), trained(store, "b")
    trained(store, "c", writes=False)
    places = {run.label: f"{run.label}:{run.path.resolve() / SCALARS_FOLDER}" for run in (first, second)}
    assert main(["tensorboard", "b"]) == 0
    assert argv[1:] == ["--logdir_spec", places["b"], "--host", "localhost"]
    assert capsys.readouterr().out == "http://localhost:6007/  1 run; Ctrl-C ends it\n"
    assert main(["tensorboard", "--json", "--port", "6010"]) == 0
    assert argv[2] == f"{places['a']},{places['b']}" and argv[-2:] == ["--port", "6010"]
    assert json.loads(capsys.readouterr().out)["address"] == "http://localhost:6007/"
    assert main(["tensorboard", "-q"]) == 0
    assert capsys.readouterr().out == "http://localhost:6007/\n"


def test_a_comparison_means_what_was_launched_for_it(store: RunStore, argv: list[str]) -> None:
    comparison = store.create("compare", "two", name="cmp")
    arm = trained(store, "arm", group=comparison.id)
    trained(store, "another")
    assert main(["tensorboard", "cmp"]) == 0
    assert argv[2] == f"arm:{arm.path.resolve() / SCALARS_FOLDER}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["plain"], "plain: no scalars"), ([], "no run has scalars"), (["nobody"], "nobody")],
)
def test_without_scalars_it_says_how_to_get_them(
    store: RunStore, argv: list[str], capsys: Output, arguments: list[str], said: str
) -> None:
    trained(store, "plain", writes=False)
    assert main(["tensorboard", *arguments]) == 2
    assert said in capsys.readouterr().err and not argv


def test_a_signal_that_asks_to_stop_is_no_ctrl_c(
    store: RunStore, argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(store, "a")
    monkeypatch.setattr(module, "wait_for_ctrl_c", Mock(side_effect=Terminated(15)))
    assert main(["tensorboard"]) == 143


@pytest.mark.parametrize("needed", [None, "a_module_of_old"])
def test_without_the_package_or_what_it_needs_it_is_one_line(
    store: RunStore, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, needed: str | None
) -> None:
    trained(store, "a")
    package = ModuleType("tensorboard")
    package.__path__ = [str(tmp_path)]
    (tmp_path / "program.py").write_text(f"import {needed}\n", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "tensorboard", package if needed else None)
    assert main(["tensorboard"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: the package tensorboard cannot be imported: ") and (needed or "") in error
    assert hint == "hint: pip install --upgrade tensorboard."
