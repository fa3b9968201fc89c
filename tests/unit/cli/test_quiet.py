"""Under `-q` every command prints its result as plain lines for a script: a path, a name, a verdict; never a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from unit.bench.test_bench_run import launched_at_once
from unit.engine.rank.test_toy_check import checked_at_once

from dynbench.analysis import figures
from dynbench.bench import bench_run
from dynbench.cli import health
from dynbench.cli.health import Diagnosis
from dynbench.cli.main import COMMANDS, main
from dynbench.cli.shipped import FOLDER
from dynbench.config.recipes import list_recipes
from dynbench.engine.rank import toy_check as toy_ranks
from dynbench.experiment import training
from dynbench.experiment.training import TrainingResult
from dynbench.plugins import BENCHMARKS, COMPRESSORS, POLICIES, STRATEGIES
from dynbench.probe import prober
from dynbench.runs import probe_record
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

SOLVE = ["solve", "lognormal", "--steps", "1", "--world-size", "2", "--policy", "static,partition", "--no-figures"]
LINES: dict[str, tuple[list[str], Callable[[Run], list[str]]]] = {
    "train": (["train"], lambda run: [str(run.path)]),
    "probe": (["probe"], lambda run: [str(run.path)]),
    "solve": (SOLVE, lambda run: [_latest(run, "solve")]),
    "solve --list": (["solve", "--list"], lambda run: list(POLICIES)),
    "data lengths": (["data", "lengths", "-o", "{tmp}/x.csv"], lambda run: [f"{run.path.parent.parent}/x.csv"]),
    "runs": (["runs", "ls"], lambda run: [run.id]),
    "runs show": (["runs", "show", "a"], lambda run: [str(run.path)]),
    "runs rm": (["runs", "rm", "a", "--yes"], lambda run: [str(run.path)]),
    "runs rm of nothing": (["runs", "rm", "--failed", "--yes"], lambda run: []),
    "recipes": (["recipes", "ls"], lambda run: list(list_recipes())),
    "recipes cp": (["recipes", "cp", "quickstart", "{tmp}/x.yaml"], lambda run: [f"{run.path.parent.parent}/x.yaml"]),
    "plugins": (["plugins", "policies"], lambda run: list(POLICIES)),
    "sync": (["sync", "ls"], lambda run: list(STRATEGIES)),
    "sync check": (["sync", "check", "ddp"], lambda run: ["ddp sgd 1e-17", "ddp adamw 2e-17"]),
    "compress": (["compress", "ls"], lambda run: list(COMPRESSORS)),
    "bench": (["bench", "collectives", "--set", "backend=gloo"], lambda run: [_latest(run, "bench")]),
    "bench ls": (["bench", "ls"], lambda run: [*BENCHMARKS, "assignment"]),
    "doctor": (["doctor"], lambda run: ["poor"]),
    "guide": (["guide"], lambda run: [path.stem for path in sorted(FOLDER.glob("*.md"))]),
}
ELSEWHERE = {"analyze", "compare", "report", "eval", "generate", "tensorboard", "completion"}
"""With a comparison to show, in unit/experiment/test_compare.py; with a model kept, in engine/rank/test_saved.py; with
scalars, in test_tensorboard.py."""


def _latest(run: Run, command: str) -> str:
    return str(RunStore(run.path.parent).resolve(f"@latest:{command}").path)


def test_every_command_has_its_lines() -> None:
    assert {name.partition(" ")[0] for name in LINES} | ELSEWHERE == set(COMMANDS)


@pytest.mark.parametrize("case", LINES)
def test_quiet_prints_the_result_only(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(tmp_path / "results")
    run = store.create("train", "static", name="a")
    run.update(status="completed", exit_code=0)
    monkeypatch.setattr(training, "run_training", lambda *_, **__: TrainingResult(run, {"policy": "static"}))
    monkeypatch.setattr(prober, "run_probe", lambda *_, **__: run)
    monkeypatch.setattr(probe_record, "read_probe", lambda _: None)
    monkeypatch.setattr(training, "next_training", lambda *_: None)
    monkeypatch.setattr(figures, "draw_figures", lambda *_: [])
    monkeypatch.setattr(bench_run, "launch_ranks", launched_at_once({}))
    monkeypatch.setattr(toy_ranks, "_on_processes", checked_at_once)
    monkeypatch.setattr(
        health, "CHECKS", {"poor": lambda _: Diagnosis(False, "x"), "fine": lambda _: Diagnosis(True, "x")}
    )
    arguments, expected = LINES[case]
    arguments = [word.format(tmp=tmp_path) for word in arguments]
    assert main([*arguments, "-q", "--results", str(store.root)]) == 0
    out, err = capsys.readouterr()
    assert (out.splitlines(), err) == (expected(run), "")
