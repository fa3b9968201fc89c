"""`dynbench compare`: its options, without launching anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynbench.cli.console import compare_display
from dynbench.cli.main import main
from dynbench.errors import UsageError
from dynbench.experiment.launch_plan import LaunchState
from dynbench.experiment.launches import CompareProgress


def test_what_no_arm_reads_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for_some = ["--set", "schedule.solver=greedy", "--set", "schedule.cost_type=attention"]
    for_none = ["--set", "schedule.replan_steps=16", "--set", "compress.ratio=0.5", "--set", "analysis.confidence=0.9"]
    dry = ["compare", "--dry-run", "--json", "--results", str(tmp_path / "results")]

    assert main([*dry, *for_some]) == 0
    assert capsys.readouterr().err == ""
    assert main([*dry, *for_some, *for_none]) == 0

    printed = capsys.readouterr()
    warnings = json.loads(printed.out)["warnings"]
    assert [line.partition(":")[0] for line in warnings] == ["compress.ratio", "schedule.replan_steps"]
    assert printed.err.splitlines() == [f"warning: {line}" for line in warnings]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quikstart"], "Did you mean 'quickstart'?"),
        (["quickstart", "--launches", "3", "--launch-mode", "apart"], "--launches: 3 launches per arm"),
        (["quickstart", "--set", "train.stepz=3"], "train.stepz"),
        (["quickstart", "-c", "other.yaml"], "two recipes given"),
        (["--resume", "nothing"], "not found"),
        (["quickstart", "--resume", "nothing"], "takes no others"),
        (["--resume", "nothing", "--steps", "3"], "takes no others"),
    ],
)
def test_mistakes_are_usage_errors(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments, "--results", str(tmp_path / "results")]) == 2

    assert said in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_comparison_named_by_its_path_goes_on_among_its_own_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dynbench.runs.run import Run
    from dynbench.runs.store import RunStore

    def begun(comparison: Run, store: RunStore, settings: object) -> None:
        raise UsageError(f"{comparison.id} in {store.root}")

    monkeypatch.setattr("dynbench.cli.compare._run", begun)
    run = RunStore(tmp_path / "there").create("compare", "x")

    assert main(["compare", "--resume", str(run.path), "--results", str(tmp_path / "here")]) == 2
    assert f"{run.id} in {tmp_path / 'there'}\n" in capsys.readouterr().err


def test_without_a_terminal_every_launch_and_stage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    launch = [LaunchState("static", 0, 0)]
    with compare_display(True) as display:
        for step in (0, 1, 2):
            display.on_progress(CompareProgress(0, 2, launch, step, 2, None if step == 0 else 61.2))
        display.on_progress(CompareProgress(1, 2, [*launch, LaunchState("partition", 0, 0)], 0, 2, 7.0))
        for text in ("merging a (1 of 2)", "merging b (2 of 2)", "drawing figures"):
            display.on_stage(text)

    assert capsys.readouterr().err.splitlines() == [
        "launch 1/2  static #1",
        "launch 2/2  2 arms in turns #1  about 7 s left",
        "merging a (1 of 2)",
        "drawing figures",
    ]


def test_epochs_are_told_once_with_the_names_of_their_arms(capsys: pytest.CaptureFixture[str]) -> None:
    arms = [LaunchState("static", 0, 0), LaunchState("partition", 0, 0)]
    lines = [(("e1",), ()), (("e1", "e2"), ("f1",)), (("e1", "e2"), ("f1",))]
    with compare_display(True) as display:
        for launch in (0, 1):
            for step, epochs in enumerate(lines):
                display.on_progress(CompareProgress(launch, 2, arms, step, 2, None, epochs))
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if "launch" not in line] == ["static #1  e1", "static #1  e2", "partition #1  f1"] * 2
