"""`dynbench train` before anything is launched: dry runs, mistakes, and what it says afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dynbench.cli.console import describe, progress_display
from dynbench.cli.main import main
from dynbench.cli.train import analysis_command
from dynbench.config.digest import dump_config
from dynbench.config.layers import load_config
from dynbench.engine.launching.progress import Progress
from dynbench.runs.atomic import write_text
from dynbench.runs.run import Run
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore

Output = pytest.CaptureFixture[str]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; the results folder in it is not made yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNBENCH_RESULTS", raising=False)
    return tmp_path / "results"


def refuse_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*_: object) -> None:
        raise AssertionError("ranks were launched")

    monkeypatch.setattr("dynbench.engine.launching.torchrun.run_torchrun", launched)


def test_dry_run_shows_everything_and_touches_nothing(results: Path, capsys: Output) -> None:
    assert main(["train", "--mode", "dynamic", "--nproc", "2", "--name", "b", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "policy: partition" in shown and "nproc: 2" in shown
    assert "torchrun" in shown and "--standalone" in shown and "-m dynbench.engine.rank.worker" in shown
    assert "run " in shown and "partition-<random>" in shown
    assert list(results.parent.iterdir()) == []


@pytest.mark.slow
def test_a_launch_is_planned_without_the_code_of_models(results: Path) -> None:
    """Its import takes as long as that of torch, and only the ranks build a model."""
    code = (
        "import sys; from dynbench.cli.main import main; assert main(['train', '--dry-run']) == 0\n"
        "import dynbench.workloads.text_classification\n"
        "assert 'dynbench.workloads.pretrained_model' in sys.modules\n"
        "print('transformers.modeling_utils' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("place", ["file/below", "link", "locked"])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_dry_run_refuses_results_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, command: str, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "locked").mkdir()
    if place == "locked":  # for root too
        monkeypatch.setattr("dynbench.runs.store.os.access", lambda path, _: path != tmp_path / "locked")
    before = sorted(tmp_path.rglob("*"))
    assert main([command, "--dry-run", "--nproc", "2", "--results", str(tmp_path / place)]) == 2
    assert f"{tmp_path / place}: the results folder cannot be written: " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_dry_run_refuses_what_cannot_take_turns_with_no_communication(results: Path, capsys: Output) -> None:
    asked = ["train", "--dry-run", "--exposed", "--device", "cpu", "--nproc", "2"]
    assert main([*asked, "--set", "launch.launcher=virtual", "--set", "launch.world_size=2"]) == 2
    assert "train.exposed: true, but virtual ranks send nothing to each other" in capsys.readouterr().err
    assert main([*asked, "--sync", "ps"]) == 2
    assert "a server steps by what workers send" in capsys.readouterr().err
    assert main([*asked, "--name", "b"]) == 0
    assert "communicate: true" in capsys.readouterr().out and list(results.parent.iterdir()) == []


def test_dry_run_as_json(results: Path, capsys: Output) -> None:
    assert main(["train", "--dry-run", "--nproc", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["launch"]["nproc"] == 2
    assert shown["torchrun"][0] == "torchrun" and shown["environment"]["OMP_NUM_THREADS"]
    assert shown["decisions"]["schedule.policy"]["value"] == "static"
    assert not results.exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["--name", "../x"], 2, "../x"),
        (["--global-batch", "63"], 2, "62 or 64"),
        (["--global-batch", "1"], 2, "nearest that works: 2"),
        (["--mode", "dynamic", "--policy", "prefix", "--buffer", "8"], 2, "nearest that works: 32"),
        (
            ["--mode", "dynamic", "--capacity", "20,11"],
            4,
            "--global-batch 31, the largest below 64 that fits in all 110 steps",
        ),
        (["--capacity", "11"], 4, "--global-batch 22, the largest below 64 that fits in all 110 steps"),
        (["--capacity", "no-such-probe"], 2, "no-such-probe"),
        (["--mode", "dinamic", "--steps", "-3", "--set", "train.sead=1"], 2, "sead"),
    ],
)
def test_mistakes_are_found_before_anything_is_made(
    results: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, arguments: list[str], exit_code: int, said: str
) -> None:
    refuse_launches(monkeypatch)
    assert main(["train", "--nproc", "2", "--device", "cpu", "--json", *arguments]) == exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == exit_code and said in error["message"] + error["hint"]
    assert not results.exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["policy=partition", "micro_batches=auto", f"capacity={[20] * 7 + [9]}"], "unequal capacity"),
        (["policy=prefix", "micro_batches=2"], "with policy 'prefix'"),
        (["policy=prefix", "solver=enumerate"], "enumerate would try"),
        (["policy=prefix", "solver=enumerate", "exchange=gather"], "enumerate would try"),
        (["policy=group_by_length", "micro_batches=3"], "not a multiple of the 8 ranks times 3"),
        (["policy=token_budget", "micro_batches=auto"], "with policy 'token_budget'"),
        (["cost_type=measured", "cost_coefficients=[0.0, 0.0, 0.0]"], "schedule.cost_coefficients"),
        (["policy=partition", "cost_coefficients=[3.0, 0.0, 0.0]"], "schedule.cost_coefficients"),
    ],
)
@pytest.mark.parametrize("start", ["torchrun", "virtual", "dry torchrun", "dry virtual", "attached"])
def test_what_no_plan_can_meet_is_found_before_anything_is_made(
    results: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, settings: list[str], said: str, start: str
) -> None:
    def met(*_: object) -> None:
        raise AssertionError("ranks have met")

    refuse_launches(monkeypatch)
    monkeypatch.setattr("dynbench.engine.launching.run_launch.process_group", met)
    ranks = ["--set", "launch.launcher=virtual", "--world-size", "8"] if "virtual" in start else ["--nproc", "8"]
    if start == "attached":
        ranks = []
        for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}.items():
            monkeypatch.setenv(key, value)
    words = [word for setting in settings for word in ("--set", f"schedule.{setting}")]
    dry = ["--dry-run"] if "dry" in start else []
    assert main(["train", "--device", "cpu", "--json", *ranks, *dry, *words]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    if "virtual" in start and "exchange=gather" in settings:
        said = "'gather' needs real ranks"
    assert said in error["message"] + error["hint"]
    assert not results.exists()


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, [], "train.tsv"),
        ("", [], "train.tsv"),
        ("text\tlabel\na b\t1\n", ["--text-column", "sentence"], "no column 'sentence'"),
        ("sentence\tlabel\na b\t1\nc\tgood\n", [], "train.tsv:3: label 'good'"),
    ],
)
def test_mistakes_in_a_data_file_are_found_before_anything_is_made(
    results: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    arguments: list[str],
    said: str,
) -> None:
    refuse_launches(monkeypatch)
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    if content is not None:
        Path("train.tsv").write_text(content, encoding="utf-8")
    own = ["--dataset", "tsv", "--data-path", "train.tsv", "--tokenizer", "vocab.txt", *arguments]
    assert main(["train", "--nproc", "2", "--json", *own]) == 2
    assert said in json.loads(capsys.readouterr().out)["error"]["message"]
    assert not results.exists()


def test_a_large_data_file_is_left_to_the_ranks(results: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynbench.workloads.inputs._CHECKED_MB", 1e-6)
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    Path("train.tsv").write_text("nothing that could be used", encoding="utf-8")
    own = ["--dataset", "tsv", "--data-path", "train.tsv", "--tokenizer", "vocab.txt"]
    assert main(["train", "--nproc", "2", "--dry-run", *own]) == 0


def test_a_name_in_use_is_found_before_a_probe(results: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_launches(monkeypatch)
    RunStore(results).create("train", "static", name="runA")
    assert main(["train", "--nproc", "2", "--name", "runA", "--probe", "auto"]) == 2
    assert "in use" in capsys.readouterr().err
    assert len(RunStore(results).list()) == 1


def test_a_name_in_use(results: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_launches(monkeypatch)
    RunStore(results).create("train", "static", name="runA")
    assert main(["train", "--nproc", "2", "--name", "runA"]) == 2
    assert "in use" in capsys.readouterr().err
    assert len(RunStore(results).list()) == 1


def test_results_that_cannot_be_written(results: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_launches(monkeypatch)
    results.write_text("a file, not a folder")
    assert main(["train", "--nproc", "2"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def finished(store: RunStore, mode: str, *overrides: str, name: str | None = None) -> Run:
    run = store.create("train", mode, name=name)
    write_text(run.config_file, dump_config(load_config(None, [f"schedule.mode={mode}", *overrides])))
    run.update(status=Status.COMPLETED)
    return run


def test_the_next_step_pairs_what_differs_in_scheduling_only(tmp_path: Path) -> None:
    store, option = RunStore(tmp_path), f" --results {tmp_path}"
    static = finished(store, "static", name="runA")
    assert analysis_command(static, store) == f"dynbench analyze runA{option}"
    dynamic = finished(store, "dynamic", name="runB")
    assert analysis_command(dynamic, store) == f"dynbench analyze runA runB{option}"
    assert analysis_command(static, store) == f"dynbench analyze runA runB{option}"
    longer = finished(store, "dynamic", "train.global_batch=128")
    assert analysis_command(longer, store) == f"dynbench analyze {longer.id}{option}"


def test_a_broken_run_beside_it_does_not_fail_the_next_step(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    static, broken = finished(store, "static", name="runA"), finished(store, "dynamic")
    broken.config_file.write_text("", encoding="utf-8")
    assert analysis_command(static, store) == f"dynbench analyze runA --results {tmp_path}"


def test_progress_without_a_terminal_is_a_few_lines(capsys: Output) -> None:
    with progress_display(True) as show:
        assert show is not None
        for step in range(101):
            show(Progress(step, 100, 1.0, 0.5, 1000.0, 1.25))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("step 100/100") and "loss 0.500" in lines[-1]


def test_what_is_prepared_is_told_as_it_changes(capsys: Output) -> None:
    with progress_display(True) as show:
        assert show is not None
        for said in ("tokenising: 10%", "tokenising: 10%", "tokenising: 60%"):
            show(Progress(0, 20, 1.0, preparing=said))
        show(Progress(1, 20, 2.0))
    err = capsys.readouterr().err
    assert [err.count(said) for said in ("tokenising: 10%", "tokenising: 60%", "step 1/20")] == [1, 1, 0]


def test_quiet_shows_no_progress() -> None:
    with progress_display(False) as show:
        assert show is None


def test_unknown_facts_are_left_out() -> None:
    assert describe(Progress(0, 10, 1.0)) == ""


def test_epochs_are_told_as_they_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(True) as show:
        for lines in ((), ("epoch 1",), ("epoch 1",), ("epoch 1", "epoch 2")):
            show(Progress(1, 20, 1.0, epochs=(lines,)))
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("epoch")] == ["epoch 1", "epoch 2"]
