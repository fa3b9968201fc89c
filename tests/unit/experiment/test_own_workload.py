"""Runs of code of the user's own: compared by its digest, reported by name, and never run by whoever reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_rows import made_row
from own import imports_forgotten, write_own

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.recipes import RECIPE_FILE, load_recipe
from dynbench.config.schema import Config, dump_config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.errors import RecordError, UsageError
from dynbench.experiment.compare import start_comparison
from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.trace_sources import dataset_trace, run_trace, trained_trace, training_trace
from dynbench.plugins import WORKLOADS
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.records import LENGTHS_FILE, RowWriter, write_lengths
from dynbench.runs.run import Run, Status
from dynbench.runs.store import RunStore
from dynbench.workloads.registry import build_workload

TINY = ("launch.nproc=2", "launch.device=cpu", "launch.launcher=torchrun", "train.global_batch=8", "train.steps=4")
RECIPE = """\
description: two arms
settings:
  workload: {name: "mine:Mine"}
  launch: {launcher: torchrun, nproc: 2, threads: 1, device: cpu}
arms:
  - name: static
  - name: partition
    set: {schedule.mode: dynamic}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which holds `mine.py`."""
    write_own(tmp_path)
    monkeypatch.chdir(tmp_path)
    with imports_forgotten(monkeypatch):
        yield tmp_path


def settings(*overrides: str) -> Config:
    return load_config(None, ["workload.name=mine:Mine", "workload.max_length=24", *TINY, *overrides])


def finished(store: RunStore, policy: str, *overrides: str) -> Run:
    """A run as `train` leaves it, with made-up rows."""
    asked = settings(f"schedule.policy={policy}", "train.warmup_steps=0", *overrides)
    config = resolve(asked, this_machine(), store).config
    run = store.create("train", policy)
    write_text(run.config_file, dump_config(config))
    facts = {"workload": {"name": config.workload.name, "digest": config.workload.code_digest}, "fingerprint": "f"}
    write_json(run.env_file, {"data": {**facts, "train": {"samples": 300}, "lengths": {"mean": 9.0}}})
    run.ranks_dir.mkdir(exist_ok=True)
    write_lengths(run, np.arange(2, 302) % 20 + 1, None)
    for rank in (0, 1):
        with RowWriter(run.rank_file(rank)) as writer:
            for step in range(4):
                writer.write(made_row(step, rank, 100.0 + step + rank, warmup=0, policy=policy))
    run.update(status=Status.COMPLETED)
    return run


def plant(folder: Path) -> Path:
    """From here on, whoever imports the user's module leaves a mark."""
    mark = folder / "was-run"
    text = (folder / "mine.py").read_text(encoding="utf-8")
    (folder / "mine.py").write_text(f"open({str(mark)!r}, 'w').close()\n{text}", encoding="utf-8")
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
        assert main([*line.split(), "--results", str(store.root)]) == 0, line
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


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 torn", b"spoilt"])
def test_a_run_without_its_lengths_says_so(store: RunStore, content: bytes | None) -> None:
    run = finished(store, "static")
    file = run.ranks_dir / LENGTHS_FILE
    whole = file.read_bytes()
    spoilt = whole[:60] + b"\xff" * 40 + whole[100:]
    file.unlink() if content is None else file.write_bytes(spoilt if content == b"spoilt" else content)
    with pytest.raises(RecordError, match="cannot be read") as caught:
        trained_trace(run)
    assert "--workload" in caught.value.hint


@pytest.mark.slow
def test_the_users_own_settings_are_run_to_plan_its_lengths() -> None:
    for load, longest in ((training_trace, 24), (dataset_trace, 341)):
        trace = load(settings())
        assert (trace.name, trace.source, len(trace.lengths)) == ("mine:Mine", "workload.name mine:Mine", 4096)
        assert trace.lengths.max() == longest


@pytest.mark.slow
def test_runs_of_another_version_of_the_file_cannot_be_compared(
    folder: Path, unreported: None, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(folder / "results")
    first = finished(store, "static")
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + "# changed\n", encoding="utf-8")
    changed = finished(store, "partition")
    same, elsewhere = finished(store, "static"), write_own(folder / "moved")
    moved = finished(store, "partition", f"workload.import_from={elsewhere.parent}")

    assert main(["analyze", first.id, changed.id, "--results", str(store.root)]) == 5
    assert "workload.code_digest" in capsys.readouterr().err
    assert main(["analyze", same.id, changed.id, "--results", str(store.root)]) == 0
    assert main(["analyze", first.id, moved.id, "--results", str(store.root)]) == 0
    assert first.config().workload.code_digest == moved.config().workload.code_digest


def test_all_launches_of_a_comparison_run_the_file_as_it_was_at_its_start(folder: Path) -> None:
    store, recipe = RunStore(folder / "results"), folder / "own.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    comparison = start_comparison(load_recipe(recipe), store)
    arms = load_recipe(comparison.path / RECIPE_FILE).arms
    digests = {config.workload.code_digest for config in arms.values()}
    assert len(digests) == 1 and None not in digests
    resolve(arms["static"], this_machine(), store)

    plant(folder)

    with pytest.raises(UsageError, match="it has changed since"):
        resolve(arms["static"], this_machine(), store)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_dry_run_finds_mistakes_and_runs_nothing(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = plant(folder)
    (folder / "own.yaml").write_text(RECIPE, encoding="utf-8")
    arguments = [command, *(["own.yaml"] if command == "compare" else []), "--dry-run", "--results", "results"]

    assert main([*arguments, "--workload", "mine:Mine"]) == 0
    assert "mine:Mine" in capsys.readouterr().out
    assert main([*arguments, "--workload", "mine:Nine", "--json"]) == 2
    assert "Did you mean 'Mine'?" in capsys.readouterr().out
    assert not mark.exists() and not Path("results").exists()
