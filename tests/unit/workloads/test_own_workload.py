"""A workload of the user's own: found before any of it is run, what it must offer, and where its errors are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import batch_of
from own import imports_forgotten, write_own
from unit.workloads.conftest import configured

from dynbench.config.paths import path_problems
from dynbench.config.schema import Workload
from dynbench.engine.launching.auto_settings import Decisions, decide_shape
from dynbench.errors import ConfigError, DataError, UsageError, WorkerFailed
from dynbench.plugins import WORKLOADS
from dynbench.workloads.inputs import check_inputs
from dynbench.workloads.own_code import find_own_code, own_code_settings
from dynbench.workloads.registry import build_workload

WHOLE = "class Whole: ...\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; each test has files of its own under the same names."""
    monkeypatch.chdir(tmp_path)
    with imports_forgotten(monkeypatch):
        yield tmp_path


def build(folder: Path, body: str = "    pass\n", file: str = "mine.py", name: str | None = None):
    """The workload of a class, whose module has torch, too."""
    path = write_own(folder, body, file)
    workload = build_workload(configured(f"name={name or f'{path}:Mine'}", f"import_from={folder}", "max_length=32"))
    sys.modules[type(workload._theirs).__module__].torch = torch
    return workload


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("deep/er/mine.py:Whole", "deep/er/mine.py", WHOLE),
        ("pkg.mod:Whole", "pkg/mod.py", WHOLE),
        ("pkg:Whole", "pkg/__init__.py", WHOLE),
        ("mine:Whole", "mine.py", "from elsewhere import *\n"),
        ("mine:Whole", "mine.py", "def __getattr__(name): ...\n"),
    ],
)
def test_it_is_found_from_the_folder_of_the_command_and_later_from_where_it_was(
    name, file, text, folder, tmp_path_factory, monkeypatch
):
    """Whether it has the class, only running it may tell."""
    write(folder / file, text)
    found = find_own_code(Workload(name=name))
    assert (found.file, found.folder, found.attribute) == (folder / file, folder, "Whole")
    stored = Workload(name=name, **own_code_settings(Workload(name=name)))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert find_own_code(stored) == found


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mime:Whole", WHOLE, "no module mime in .* Did you mean 'mine'?"),
        ("mime.py:Whole", WHOLE, "no file mime.py in .* Did you mean 'mine.py'?"),
        ("mine:Hole", WHOLE, "mine.py has no class Hole. Did you mean 'Whole'?"),
        ("mine:Whole", "import os\n", "mine.py has no class Whole"),
        ("json:Whole", WHOLE, r"json/__init__\.py has no class Whole"),
        ("mine:Whole", "x = 1\ndef f(:\n", "mine.py:2: no valid Python: "),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_there(name, text, message, folder):
    write(folder / "mine.py", text)
    with pytest.raises(UsageError, match=rf"^workload\.name: .*{message}[^\n]*\n?.*$"):
        find_own_code(Workload(name=name))


def test_finding_it_runs_nothing_and_imports_no_torch(folder):
    write(folder / "mine.py", "raise SystemExit('run')\nclass Mine(object): ...\n")
    program = (
        "import sys; from dynbench.config.schema import Workload; "
        "from dynbench.workloads.own_code import find_own_code; "
        "print(find_own_code(Workload(name='mine:Mine')).attribute, 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "Mine False\n"


def test_what_a_registered_workload_takes_its_settings_for_is_its_own_affair(monkeypatch):
    config = configured("dataset=tsv", "data_path=gone.tsv", "model=./gone")
    with pytest.raises(ConfigError, match="data_path"):
        check_inputs(config)
    monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    assert path_problems(config) == []
    assert check_inputs(config) is None
    assert configured("data_path=lengths.txt").workload.runs_own_code
    found = Decisions(config)
    decide_shape(found)
    assert (found.changes, found.reasons) == ({"workload.size": "small"}, {})


@pytest.mark.parametrize(
    ("file", "name"), [("mine.py", "mine:Mine"), ("mine.py", None), ("pkg/mod.py", "pkg.mod:Mine"), ("my-own.py", None)]
)
def test_a_class_is_loaded_with_the_modules_beside_it(tmp_path, file, name):
    workload = build(tmp_path, file=file, name=name)
    if file != "pkg/mod.py":
        assert list(workload.facts["workload"]["beside"]) == ["length_regression.py"]
    assert len(workload.train) == 4096 and workload.positions is None


MEAN = "    def loss(self, model, batch): return super().loss(model, batch) / len(batch['target'])\n"
HALVES = "    def eval_sums(self, m, batch): return {'loss_sum': self.loss(m, batch).item() / len(batch['target'])}\n"
MEAN_OF_TOKENS = """\
    def loss(self, model, batch):
        return super().loss(model, batch) * batch["mask"].sum() / len(batch["mask"])
"""


@pytest.mark.parametrize(("body", "what"), [(MEAN, "loss"), (MEAN_OF_TOKENS, "loss"), (HALVES, "eval_sums' loss_sum")])
def test_losses_that_do_not_add_up_over_samples_are_refused(tmp_path, body, what):
    said = rf"mine\.py:Mine: {what} is \S+ for 4 samples together, but \S+ for each.*\n.*reduction='sum'"
    with pytest.raises(UsageError, match=said):
        build(tmp_path, body).build_model(0)


WEIGHED = """\
    def _sequences(self, count, longest, seed):
        data = super()._sequences(count, longest, seed)
        weights = data.lengths % 3
        return type(data).from_arrays(data.tokens, data.offsets, data.labels, weights=weights)

    def collate(self, data, ids, width):
        batch = super().collate(data, ids, width)
        return {**batch, "weight": batch["mask"].sum(1) * 0 + batch["target"].new_tensor(data.weights[ids])}

    def loss(self, model, batch):
        errors = (model(batch["tokens"], batch["mask"]) - batch["target"]) ** 2
        return (errors * batch["weight"]).sum()
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    def loss(self, m, batch): return super().loss(m, batch) * torch.rand(())\n", "two passes give"),
        ("    def loss(self, m, batch): return super().loss(m, batch) * batch['mask'].shape[1]\n", "padding changes"),
        (WEIGHED, None),
    ],
)
def test_what_cannot_be_judged_or_depends_on_padding_is_warned_of_and_weights_are_not(tmp_path, caplog, body, message):
    build(tmp_path, body).build_model(0)
    messages = [record.getMessage() for record in caplog.records]
    expected = [True, True] if message else []  # of loss, and of what eval_sums makes of it
    assert [message in each for each in messages] == expected


def test_equal_seeds_give_equal_weights_also_where_the_class_ignores_them(tmp_path):
    workload, state = build(tmp_path), torch.random.get_rng_state()
    first, again, other = (workload.build_model(seed).out.weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "    def __init__(self): ...",
        "    def __init__(self, config): ...",
        "    loss = None",
        "    eval_sums = None",
        WEIGHED.replace("data.lengths % 3", "data.lengths * 0"),
        "    positions = 8",
        "    positions = 'all'",
        "    def __setattr__(self, key, it):\n        super().__setattr__(key, {1} if key == 'facts' else it)",
        "    def build_model(self, seed): return torch",
        "    def build_model(self, seed): return torch.nn.ReLU()",
        "    def collate(self, data, ids, width): return []",
        "    def collate(self, data, ids, w): return {'x': torch.ones(2, 5)}",
        "    def loss(self, m, batch): return super().loss(m, batch).repeat(3)",
        "    def loss(self, m, batch): return super().loss(m, batch).detach()",
        "    def eval_sums(self, m, batch): return {'loss': 1}",
    ],
    ids=str.strip,
)
def test_what_breaks_the_protocol_is_refused_where_it_happens(tmp_path, body):
    """When it is made, or later."""
    with pytest.raises(UsageError, match=r"^workload\.name: .*mine\.py:Mine: "):
        workload = build(tmp_path, body)
        model, batch = workload.build_model(0), batch_of(workload, np.arange(3))
        workload.loss(model, batch)
        workload.eval_sums(model, batch)


def test_a_signature_is_told_beside_the_one_that_is_expected(tmp_path):
    with pytest.raises(UsageError, match=r"mine\.py:Mine: loss\(model\); expected loss\(model, batch\)"):
        build(tmp_path, "    def loss(self, model): ...")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("import nowhere_to_be_found\n", 1, "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("def f():\n    return 1 / 0\nf()\n", 2, "ZeroDivisionError: division by zero"),
        ("import numpy\ndef f(config):\n    numpy.zeros(2).reshape(3)\nMine = f\n", 3, "ValueError: cannot reshape"),
    ],
)
def test_an_error_of_its_code_names_the_line_of_its_own_file(folder, text, line, message):
    path = write(folder / "mine.py", text + "class Mine(f): ...\n" * ("Mine" not in text))
    with pytest.raises(WorkerFailed, match=f"mine.py:{line}: {message}") as caught:
        build_workload(configured(f"name={path}:Mine"))
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("raised", ["MemoryError()", "RuntimeError('out of memory')", "DataError('x.tsv:3: bad')"])
def test_errors_that_mean_something_to_dynbench_stay_what_they_are(tmp_path, raised):
    text = f"from dynbench.errors import DataError\ndef Mine(config):\n    raise {raised}\n"
    path = write(tmp_path / "mine.py", text)
    with pytest.raises((MemoryError, RuntimeError, DataError)) as caught:
        build_workload(configured(f"name={path}:Mine"))
    assert type(caught.value).__name__ in raised


def test_a_module_name_that_is_taken_is_told(tmp_path):
    write(tmp_path / "json.py", "class Mine(object): ...\n")
    with pytest.raises(UsageError, match=r"json is also the name of .*json/__init__\.py, which was imported first"):
        build_workload(configured("name=json:Mine", f"import_from={tmp_path}"))
