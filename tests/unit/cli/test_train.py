"""`dynbench train`: dry runs and mistakes before anything is launched, and what it makes of a run, which is made up."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from made_rows import write_rows

from dynbench.analysis import figures
from dynbench.cli.train import _to_gain, analysis_command
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, dump_config
from dynbench.engine.launching.resolve import launch_warnings, resolve, this_machine
from dynbench.engine.launching.run_launch import create_run
from dynbench.experiment import training
from dynbench.experiment.training import run_training
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run, Status
from dynbench.runs.store import Naming, RunStore

TWO = "--nproc 2 --device cpu"


@pytest.mark.slow
def test_a_launch_is_planned_without_the_code_of_models(results):
    """Its import takes as long as that of torch, and only the ranks build a model."""
    code = (
        "import sys; from dynbench.cli.main import main; assert main(['train', '--dry-run']) == 0\n"
        "import dynbench.workloads.text_classification\n"
        "assert 'dynbench.workloads.models' in sys.modules\n"
        "print('transformers.modeling_utils' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("place", ["file/below", "link", "locked"])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_dry_run_refuses_results_that_cannot_be_written(tmp_path, monkeypatch, cli, command, place):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "locked").mkdir()
    if place == "locked":  # for root too
        monkeypatch.setattr("dynbench.runs.store.os.access", lambda path, _: path != tmp_path / "locked")
    before = sorted(tmp_path.rglob("*"))
    said = cli(f"{command} --dry-run --nproc 2 --results {tmp_path / place}", code=2)
    assert f"{tmp_path / place}: the results folder cannot be written: " in said.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_in_use_is_found_before_a_probe(results, cli):
    RunStore(results).create("train", "static", name="runA")
    assert "in use" in cli("train --nproc 2 --name runA --probe auto", code=2).err
    assert len(RunStore(results).list()) == 1


def finished(store: RunStore, mode: str, *overrides: str, name: str | None = None) -> Run:
    run = store.create("train", mode, name=name)
    write_text(run.config_file, dump_config(load_config(None, [f"schedule.mode={mode}", *overrides])))
    run.update(status=Status.COMPLETED)
    return run


def test_the_next_step_pairs_what_differs_in_scheduling_only(store):
    def named(run: Run) -> list[str]:
        return shlex.split(analysis_command(run, store))[2:]

    static = finished(store, "static", name="runA")
    assert named(static) == ["runA"]
    dynamic = finished(store, "dynamic", name="runB")
    assert named(dynamic) == named(static) == ["runA", "runB"]
    longer = finished(store, "dynamic", "train.global_batch=128")
    assert named(longer) == [longer.id]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_what_there_is_to_gain_comes_with_a_comparison_that_can_start(store, cli, mode):
    run = finished(store, mode, "launch.device=cpu", "launch.nproc=2")
    unknown = {"wait_fraction": 0.188, "padding_ratio": 3.0, "waste": {"waiting": None, "padding": None}}
    known = {**unknown, "waste": {"waiting": 0.188, "padding": 0.4}}
    text = _to_gain(run, unknown, store)
    assert "18.8 %" in text and "67 %" in text
    assert _to_gain(run, {**known, "loss": {"last": float("nan")}}, store) == text
    said, _, suggested = _to_gain(run, known, store).partition("; try ")
    assert said == f"{text}: up to 2.4 times as fast"
    assert bool(suggested) == (mode == "static")
    if suggested:
        cli(suggested.strip("`").removeprefix("dynbench "), "--dry-run")


def launched(arms: Sequence[tuple[Config, Naming]], store: RunStore, *, asked: Config | None, **_: object) -> list[Run]:
    """Stands in for `launch_arms`: a complete run of made-up steps."""
    ((config, naming),) = arms
    resolved = resolve(config, this_machine(), store)
    warnings = launch_warnings(asked, resolved, store.root)
    run = create_run(resolved, store, warnings, **naming)
    run.update(status=Status.RUNNING)
    write_rows(run, 6, lambda step, rank: 100.0 + 7 * step * rank)
    run.update(status=Status.COMPLETED, exit_code=0)
    return [run]


@pytest.fixture
def made_up(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """The registry of runs that are not launched."""
    monkeypatch.setattr(training, "launch_arms", launched)
    return store


TINY = (*TWO.split(), "--global-batch", "8", "--steps", "5", "--warmup-steps", "1")


@pytest.mark.slow
def test_a_run_is_drawn_at_its_end(made_up, cli):
    shown = cli("train --json", *TINY).json
    drawn = [Path(path) for path in shown["figures"]]
    assert {path.stem for path in drawn} >= {"timeline", "step_time", "time_breakdown"}
    assert all(path.suffix == ".png" and path.stat().st_size > 0 for path in drawn)
    assert {path.parent for path in drawn} == {Path(shown["run"]["path"]) / "figures"}
    assert {*cli("analyze --json", shown["run"]["id"]).json["figures"]} == {*shown["figures"]}


def test_figures_that_cannot_be_drawn_do_not_fail_the_run(made_up, cli, monkeypatch):
    monkeypatch.setattr(figures, "draw_figures", Mock(side_effect=RuntimeError("no font")))
    said = cli("train --name a --json", *TINY)
    assert (said.json["figures"], said.json["summary"]["steps"]) == ([], 5)
    assert "RuntimeError: no font; dynbench analyze a " in said.err
    assert made_up.resolve("a").status is Status.COMPLETED


@pytest.mark.parametrize("line", [f"train {' '.join(TINY)}", "solve lognormal --world-size 2 --steps 5"])
def test_a_setting_without_effect_is_said_once_and_recorded(made_up, cli, line):
    """What dry runs say of it is golden."""
    said = cli(f"{line} --policy static --no-figures --set schedule.solver=greedy").err
    ((recorded,),) = (run.record().warnings for run in made_up.list())
    assert [line for line in said.splitlines() if "no effect" in line] == [f"warning: {recorded}"]
    assert recorded.startswith("schedule.solver: ")


def test_what_a_probe_has_read_is_not_warned_of(made_up, monkeypatch):
    monkeypatch.setattr(training, "make_probe", lambda *_: "auto")
    given = "train.global_batch=8 launch.nproc=2 launch.device=cpu schedule.mode=dynamic schedule.micro_batches=auto"
    result = run_training(load_config(None, [*given.split(), "probe.run=auto", "probe.repeats=2"]), made_up)
    assert result is not None and result.run.record().warnings == []


@pytest.mark.parametrize("save", [True, False])
def test_it_ends_with_five_lines(made_up, cli, save):
    lines = cli("train --name a --no-figures", *TINY, *["--save-model"] * save).lines
    assert [line[:10].strip() for line in lines] == ["trained", "to gain", "loss", "warnings", "where"]
    assert "static on 2 ranks" in lines[0] and "25 % of token positions are padding" in lines[1]
    assert lines[-1].endswith(f"next: dynbench {'eval' if save else 'analyze'} a")
