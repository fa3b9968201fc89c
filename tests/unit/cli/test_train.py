"""`dynbench train`: dry runs and mistakes before anything is launched, and what it makes of a run, which is made up."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_rows import made_row

from dynbench.analysis import figures
from dynbench.cli.console import TRAINING, display
from dynbench.cli.train import _to_gain, analysis_command
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, dump_config
from dynbench.engine.launching.progress import Progress
from dynbench.engine.launching.resolve import launch_warnings, resolve, this_machine
from dynbench.engine.launching.run_launch import create_run
from dynbench.experiment import training
from dynbench.experiment.training import run_training
from dynbench.runs.atomic import write_text
from dynbench.runs.records import RowWriter
from dynbench.runs.run import Run, Status
from dynbench.runs.store import Naming, RunStore

TWO = "--nproc 2 --device cpu"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results folder of an empty working folder, not made yet; no ranks can be launched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNBENCH_RESULTS", raising=False)
    for place in ("torchrun.run_torchrun", "run_launch.process_group"):
        monkeypatch.setattr(f"dynbench.engine.launching.{place}", lambda *_: pytest.fail("ranks were launched"))
    return tmp_path / "results"


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


def of_eight(*schedule: str) -> str:
    """Eight ranks with settings of the schedule."""
    return " ".join(["--nproc 8 --device cpu", *(f"--set schedule.{each}" for each in schedule)])


OTHER_SCHEMA = '{"schema_version": 9, "world_size": 2, "allreduce": [{"megabytes": 1, "ms": 1}]}'
UNEQUAL = of_eight("policy=partition", "micro_batches=auto", "capacity=20,20,20,20,20,20,20,9")
VIRTUAL = "--set launch.launcher=virtual"
REFUSED = [
    (f"{TWO} --global-batch 63", 2, "62 or 64"),
    (f"{TWO} --mode dynamic --capacity 20,11", 4, "--global-batch 31, the largest below 64 that fits in all"),
    (f"{TWO} --capacity no-such-probe", 2, "no-such-probe"),
    (UNEQUAL, 2, "unequal capacity"),
    (f"{UNEQUAL} {VIRTUAL} --set launch.nproc=auto --world-size 8 --dry-run", 2, "unequal capacity"),
    (of_eight("policy=group_by_length", "micro_batches=3"), 2, "not a multiple of the 8 ranks times 3"),
    (of_eight("policy=partition", "cost_coefficients=3.0,0.0,0.0"), 2, "schedule.cost_coefficients"),
    (f"{VIRTUAL} --set launch.comm_model=comm.json", 2, "schema version 9, this version reads 1"),
    (f"{TWO} --exposed {VIRTUAL} --set launch.world_size=2 --dry-run", 2, "true, but virtual ranks send"),
    (f"{TWO} --exposed --sync ps --dry-run", 2, "a server steps by what workers send"),
]
"""One of each stage that finds mistakes; the rules have tests of their own."""


@pytest.mark.parametrize(("arguments", "exit_code", "said"), REFUSED)
def test_mistakes_are_found_before_anything_is_made(results, cli, arguments, exit_code, said):
    Path("comm.json").write_text(OTHER_SCHEMA, encoding="utf-8")
    found = cli(f"train --json {arguments}", code=exit_code)
    assert found.json["error"]["exit_code"] == exit_code and said in found.mistake
    assert not results.exists()


def test_ranks_that_run_already_find_them_too(results, cli, monkeypatch):
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(key, value)
    assert "unequal capacity" in cli(f"train --json {UNEQUAL.removeprefix('--nproc 8')}", code=2).mistake
    assert not results.exists()


def test_what_takes_turns_with_no_communication_can_start(results, cli):
    assert "communicate: true" in cli(f"train --dry-run --exposed {TWO} --name b").out
    assert list(results.parent.iterdir()) == []


def test_a_name_in_use_is_found_before_a_probe(results, cli):
    RunStore(results).create("train", "static", name="runA")
    assert "in use" in cli("train --nproc 2 --name runA --probe auto", code=2).err
    assert len(RunStore(results).list()) == 1


def finished(store: RunStore, mode: str, *overrides: str, name: str | None = None) -> Run:
    run = store.create("train", mode, name=name)
    write_text(run.config_file, dump_config(load_config(None, [f"schedule.mode={mode}", *overrides])))
    run.update(status=Status.COMPLETED)
    return run


def test_the_next_step_pairs_what_differs_in_scheduling_only(tmp_path):
    store = RunStore(tmp_path)

    def named(run: Run) -> list[str]:
        *words, option, folder = shlex.split(analysis_command(run, store))
        assert (words[:2], option, folder) == (["dynbench", "analyze"], "--results", str(tmp_path))
        return words[2:]

    static = finished(store, "static", name="runA")
    assert named(static) == ["runA"]
    dynamic = finished(store, "dynamic", name="runB")
    assert named(dynamic) == named(static) == ["runA", "runB"]
    longer = finished(store, "dynamic", "train.global_batch=128")
    assert named(longer) == [longer.id]


def test_epochs_are_printed_as_they_end(capsys):
    with display(True, "starting ranks", TRAINING) as shown:
        for lines in ((), ("epoch 1",), ("epoch 1",), ("epoch 1", "epoch 2")):
            shown.on_training(Progress(1, 20, 1.0, epochs=(lines,)))
    printed = capsys.readouterr().err.splitlines()
    assert [line for line in printed if line.startswith("epoch")] == ["epoch 1", "epoch 2"]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_what_there_is_to_gain_comes_with_a_comparison_that_can_start(tmp_path, cli, mode):
    store = RunStore(tmp_path)
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
    for rank in range(2):
        writer = RowWriter(run.rank_file(rank))
        for step in range(6):
            writer.write(made_row(step, rank, 100.0 + 7 * step * rank))
        writer.close()
    run.update(status=Status.COMPLETED, exit_code=0)
    return [run]


@pytest.fixture
def store(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(training, "launch_arms", launched)
    return store


TINY = (*TWO.split(), "--global-batch", "8", "--steps", "5", "--warmup-steps", "1")


@pytest.mark.slow
def test_a_run_is_drawn_at_its_end(store, cli):
    shown = cli("train --json", *TINY).json
    drawn = [Path(path) for path in shown["figures"]]
    assert {path.stem for path in drawn} >= {"timeline", "step_time", "time_breakdown"}
    assert all(path.suffix == ".png" and path.stat().st_size > 0 for path in drawn)
    assert {path.parent for path in drawn} == {Path(shown["run"]["path"]) / "figures"}
    again = cli("analyze --json", shown["run"]["id"]).json["figures"]
    assert sorted(again) == sorted(shown["figures"])


def test_figures_that_cannot_be_drawn_do_not_fail_the_run(store, cli, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr(figures, "draw_figures", fail)
    said = cli("train --name a --json", *TINY)
    assert (said.json["figures"], said.json["summary"]["steps"]) == ([], 5)
    assert "RuntimeError: no font; dynbench analyze a " in said.err
    assert store.resolve("a").status is Status.COMPLETED


def test_a_setting_without_effect_is_said_once_and_recorded(store, cli):
    said = cli("train --name a --no-figures --set launch.comm_model=none", *TINY)
    (warning,) = store.resolve("a").record().warnings
    assert warning.startswith("launch.comm_model: 'none' has no effect")
    assert said.err.count("launch.comm_model") == 1
    unread = "--cost-type attention --set schedule.replan_steps=3"
    warnings = cli(f"train {unread} --dry-run --json", *TINY).json["warnings"]
    assert [line.partition(":")[0] for line in warnings] == ["schedule.cost_type", "schedule.replan_steps"]


def test_launches_of_a_comparison_and_what_a_probe_has_read_are_not_warned_of(store, monkeypatch):
    monkeypatch.setattr(figures, "draw_figures", lambda *_: pytest.fail("drawn"))
    monkeypatch.setattr(training, "make_probe", lambda *_: "auto")
    settings = ["train.global_batch=8", "launch.nproc=2", "launch.device=cpu"]
    alone = [*settings, "schedule.mode=dynamic", "schedule.micro_batches=auto", "probe.run=auto", "probe.repeats=2"]
    for warn_unread, given in ((False, [*settings, "launch.comm_model=none"]), (True, alone)):
        result = run_training(load_config(None, given), store, warn_unread=warn_unread)
        assert result is not None and result.figures == () and result.run.record().warnings == []


@pytest.mark.parametrize("save", [True, False])
def test_it_ends_with_five_lines(store, cli, save):
    lines = cli("train --name a --no-figures", *TINY, *["--save-model"] * save).lines
    assert [line[:10].strip() for line in lines] == ["trained", "to gain", "loss", "warnings", "where"]
    assert "static on 2 ranks" in lines[0] and "25 % of token positions are padding" in lines[1]
    assert lines[-1].endswith(f"next: dynbench {'eval' if save else 'analyze'} a")
