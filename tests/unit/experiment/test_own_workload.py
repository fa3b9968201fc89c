"""Runs of code of the user's own: compared by its digest, reported by name, and never run by whoever reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_training import RECIPE, FakeTraining
from own import imports_forgotten, write_own
from unit.experiment.conftest import command

from dynbench.config.layers import load_config
from dynbench.config.recipes import RECIPE_FILE, load_recipe
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.errors import UsageError
from dynbench.experiment.compare import start_comparison
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.trace_sources import dataset_trace, run_trace, trained_trace, training_trace
from dynbench.plugins import WORKLOADS
from dynbench.runs.records import write_lengths
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.workloads.registry import build_workload

SETTINGS = (
    "workload.name=mine:Mine launch.nproc=2 launch.device=cpu launch.launcher=torchrun "
    "workload.max_length=24 train.global_batch=8 train.steps=6 train.warmup_steps=1"
)
OWN = RECIPE.replace("workload: {dropout: 0.0}", "workload: {name: 'mine:Mine'}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which holds `mine.py`."""
    write_own(tmp_path)
    monkeypatch.chdir(tmp_path)
    with imports_forgotten(monkeypatch):
        yield tmp_path


def settings(*overrides: str) -> Config:
    return load_config(None, [*SETTINGS.split(), *overrides])


def finished(store: RunStore, policy: str, *overrides: str) -> Run:
    """A run as `train` leaves it, with made-up rows."""
    run = store.create("train", policy)
    data = {"fingerprint": "f", "train": {"samples": 300}, "lengths": {"mean": 9.0}}
    FakeTraining(data=data).train(settings(f"schedule.policy={policy}", *overrides), run, policy, {})
    write_lengths(run, np.arange(2, 302) % 20 + 1, None)
    return run


def plant(folder: Path) -> Path:
    """From here on, whoever imports the user's module leaves a mark."""
    mark, file = folder / "was-run", folder / "mine.py"
    file.write_text(f"open({str(mark)!r}, 'w').close()\n{file.read_text()}")
    return mark


@pytest.mark.slow
def test_reading_a_run_never_runs_the_code_that_it_names(folder: Path) -> None:
    """Its plans are made offline from the lengths that it kept."""
    store = RunStore(folder / "results")
    a, b = (finished(store, policy) for policy in ("static", "partition"))
    mark = plant(folder)
    for line in (
        "runs ls",
        f"runs show {a.id}",
        f"analyze {a.id}",
        f"analyze {a.id} {b.id}",
        f"report {a.id}",
        f"report {a.id} --solve --lang zh --format html -o report.html",
        f"solve --from-run {a.id} --world-size 2 --steps 2 --policy static,partition",
    ):
        assert command(f"{line} --results {store.root}") == 0, line
        assert not mark.exists(), line
    solved = read_solved(a.path)
    assert solved is not None and {line["policy"] for line in solved.results} >= {"static", "partition"}
    with pytest.raises(UsageError, match="has changed"):  # whereas training would
        build_workload(a.config())


@pytest.mark.parametrize("name", ["mine:Mine", "text_classification"])
def test_the_lengths_of_the_users_own_workload_also_a_registered_one_are_those_that_the_run_kept(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = finished(store, "static", f"workload.name={name}")
    monkeypatch.setattr(WORKLOADS, "ours", frozenset())
    for trace, called in ((trained_trace(run), name), (run_trace(run), run.label)):
        assert (trace.name, trace.positions) == (called, None)
        assert (len(trace.lengths), int(trace.lengths.max())) == (300, 20)


@pytest.mark.slow
def test_the_users_own_settings_are_run_to_plan_its_lengths() -> None:
    for load, longest in ((training_trace, 24), (dataset_trace, 341)):
        trace = load(settings())
        assert (trace.name, trace.source, len(trace.lengths)) == ("mine:Mine", "workload.name mine:Mine", 4096)
        assert trace.lengths.max() == longest


@pytest.mark.slow
def test_another_version_of_the_file_is_not_comparable(
    folder: Path, unreported: None, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(folder / "results")
    first, file = finished(store, "static"), folder / "mine.py"
    file.write_text(file.read_text() + "# changed\n")
    changed, same = finished(store, "partition"), finished(store, "static")
    moved = finished(store, "partition", f"workload.import_from={write_own(folder / 'moved').parent}")

    for one, other, code in ((first, changed, 5), (same, changed, 0), (first, moved, 0)):
        assert command(f"analyze {one.id} {other.id} --results {store.root}") == code
        assert ("workload.code_digest" in capsys.readouterr().err) == (code == 5)


def test_all_launches_of_a_comparison_run_the_file_as_it_was_at_its_start(folder: Path) -> None:
    store, recipe = RunStore(folder / "results"), folder / "own.yaml"
    recipe.write_text(OWN)
    comparison = start_comparison(load_recipe(recipe), store)
    arms = load_recipe(comparison.path / RECIPE_FILE).arms
    digests = {config.workload.code_digest for config in arms.values()}
    assert len(digests) == 1 and None not in digests
    resolve(arms["static"], this_machine(), store)

    plant(folder)

    with pytest.raises(UsageError, match="it has changed since"):
        resolve(arms["static"], this_machine(), store)


@pytest.mark.parametrize("line", ["train", "compare own.yaml"])
def test_a_dry_run_finds_mistakes_only(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = plant(folder)
    (folder / "own.yaml").write_text(OWN)

    for name, code, said in (("mine:Mine", 0, "mine:Mine"), ("mine:Nine", 2, "Did you mean 'Mine'?")):
        assert command(f"{line} --dry-run --results results --workload {name} --json") == code
        assert said in capsys.readouterr().out
    assert not mark.exists() and not Path("results").exists()
