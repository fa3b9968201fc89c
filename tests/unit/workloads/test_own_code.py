"""A workload of the user's own is found, and its mistakes are told, before any of it is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from own import EXAMPLE, NAME, write_own

from dynbench.config.layers import load_config
from dynbench.config.paths import path_problems
from dynbench.config.schema import Workload
from dynbench.engine.launching.auto_settings import decide_shape
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins import WORKLOADS
from dynbench.workloads.inputs import check_inputs
from dynbench.workloads.own_code import find_own_code, own_code_settings

METHODS = """\
class Whole:
    def build_model(self, seed): ...
    def collate(self, data, ids, width): ...
    loss = None
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mine:Whole", "mine.py"),
        ("mine.py:Whole", "mine.py"),
        ("deep/er/mine.py:Whole", "deep/er/mine.py"),
        ("pkg.mod:Whole", "pkg/mod.py"),
        ("pkg:Whole", "pkg/__init__.py"),
    ],
)
def test_it_is_found_from_the_folder_of_the_command_and_later_from_where_it_was(
    name: str, file: str, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / file, METHODS)
    found = find_own_code(Workload(name=name))
    assert (found.file, found.folder) == (folder / file, folder)

    kept = Workload(name=name, **own_code_settings(Workload(name=name)))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    assert find_own_code(kept) == found


def test_absolute_paths_installed_packages_and_the_shipped_example_are_found(folder: Path) -> None:
    path = write(folder / "there/mine.py", METHODS)
    assert find_own_code(Workload(name=f"{path}:Whole")).file == path
    assert find_own_code(Workload(name=NAME)).file == EXAMPLE
    with pytest.raises(UsageError, match=r"json/__init__\.py has no class Whole"):
        find_own_code(Workload(name="json:Whole"))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("mime:Whole", METHODS, ["no module mime in", "Did you mean 'mine'?", "import_from"]),
        ("mime.py:Whole", METHODS, ["no file mime.py in", "Did you mean 'mine.py'?"]),
        ("mine:Hole", METHODS, ["mine.py has no class Hole", "Did you mean 'Whole'?", "Classes there: Whole."]),
        ("mine:Whole", "import os\n", ["mine.py has no class Whole", "It has no class."]),
        ("mine:Whole", "x = 1\ndef f(:\n", ["mine.py:2: no valid Python: ", "Mend that line."]),
        (
            "mine:Whole",
            "class Whole: ...\n",
            ["lacks build_model(self, seed), collate(self, data, ids", "loss(self, mo"],
        ),
        ("mine:Whole", METHODS.replace("loss", "los"), ["mine:Whole lacks loss(self, model, batch)", "base.py"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_there(name: str, text: str, told: list[str], folder: Path) -> None:
    write(folder / "mine.py", text)

    with pytest.raises(UsageError) as caught:
        find_own_code(Workload(name=name))

    assert caught.value.message.startswith("workload.name: ")
    assert "\n" not in caught.value.message
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import Whole\n",
        "from elsewhere import *\n",
        "Whole = make()\n",
        "try:\n    from a import Whole\nexcept ImportError:\n    pass\n",
        "def Whole(config): ...\n",
        "class Whole(Base): ...\n",
        "@decorated\nclass Whole: ...\n",
    ],
)
def test_what_only_running_it_can_tell_is_left_to_that(text: str, folder: Path) -> None:
    write(folder / "mine.py", text)

    assert find_own_code(Workload(name="mine:Whole")).attribute == "Whole"


def test_a_file_that_changed_is_refused_unless_the_digest_is_let_go(folder: Path) -> None:
    path = write(folder / "mine.py", METHODS)
    kept = Workload(name="mine:Whole", **own_code_settings(Workload(name="mine:Whole")))
    path.write_text(METHODS + "# changed\n", encoding="utf-8")

    with pytest.raises(UsageError, match=r"workload\.code_digest: .* has changed") as caught:
        find_own_code(kept)

    assert "code_digest null" in caught.value.hint
    assert find_own_code(kept.model_copy(update={"code_digest": None})).digest != kept.code_digest


def test_finding_it_runs_nothing_and_imports_no_torch(folder: Path) -> None:
    write_own(folder, file="mine.py").write_text("raise SystemExit('run')\nclass Mine(object): ...\n", encoding="utf-8")
    program = (
        "import sys; from dynbench.config.schema import Workload; "
        "from dynbench.workloads.own_code import find_own_code; "
        "print(find_own_code(Workload(name='mine:Mine')).attribute, 'torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.stdout.split(), done.returncode) == (["Mine", "False"], 0), done.stderr


def test_what_a_registered_workload_takes_its_settings_for_is_its_own_affair(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, ["workload.dataset=tsv", "workload.data_path=gone.tsv", "workload.model=./gone"])
    with pytest.raises(ConfigError, match="data_path"):
        check_inputs(config)
    decisions: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    assert path_problems(config) == []
    assert check_inputs(config) is None
    assert load_config(None, ["workload.data_path=lengths.txt"]).workload.runs_own_code
    assert decide_shape(config, decisions) == {"workload.size": "small"} and decisions == {}
