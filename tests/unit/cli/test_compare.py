"""`dynbench compare`: its options, without launching anything."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynbench.cli.console import compare_display
from dynbench.cli.main import main
from dynbench.config.schema import Config
from dynbench.errors import UsageError
from dynbench.experiment import launches, preflight
from dynbench.experiment.launch_plan import LaunchState
from dynbench.experiment.launches import CompareProgress


def test_dry_run_shows_launches_and_settings_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"

    assert main(["compare", "--dry-run", "--launches", "2", "--steps", "7", "--json", "--results", str(results)]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert [launch["arm"] for launch in shown["launches"]] == ["static", "prefix", "partition", "window", "packed"] * 2
    assert {arm["train"]["steps"] for arm in shown["arms"].values()} == {7}
    assert not results.exists()
    assert main(["compare", "--dry-run"]) == 0
    together = (
        "4 launches, interleaved (the arms can share their processes): static prefix partition window packed; static"
    )
    assert together in capsys.readouterr().out
    assert main(["compare", "--dry-run", "--launch-mode", "apart"]) == 0
    apart = "20 launches, apart (launches.mode is apart): static; prefix; partition; window; packed; packed; window"
    assert apart in capsys.readouterr().out


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


def test_every_workload_of_the_arms_is_looked_at_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(preflight, "check_inputs", lambda config: seen.append(config.workload.layout))
    arms = ("a:mode=static", "b:mode=static,layout=packed", "c:policy=partition", "d:policy=packed,layout=packed")
    assert main(["compare", "--dry-run", "--nproc", "2", *(word for arm in arms for word in ("--arm", arm))]) == 0
    assert seen == ["padded", "packed"]


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("arm", "exit_code", "said"),
    [
        ("{train.global_batch: 32}", 5, "train.global_batch"),
        (
            f"{{schedule.policy: partition, schedule.capacity: {[80] * 7 + [9]}, schedule.micro_batches: auto}}",
            2,
            "unequal capacity",
        ),
        ("{schedule.policy: prefix, schedule.solver: enumerate}", 2, "enumerate would try"),
        ("{schedule.policy: prefix, schedule.buffer: 3}", 2, "schedule.buffer"),
    ],
)
def test_an_arm_that_cannot_end_well_is_refused_before_anything_is_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arm: str,
    exit_code: int,
    said: str,
    dry: bool,
) -> None:
    monkeypatch.setattr("dynbench.cli.compare._run", lambda *_: pytest.fail("it was launched"))
    recipe, results = tmp_path / "r.yaml", tmp_path / "results"
    shared = "settings: {train: {global_batch: 512}, launch: {nproc: 8, device: cpu}}"
    recipe.write_text(f"description: d\n{shared}\narms:\n  - name: static\n  - {{name: other, set: {arm}}}\n")
    words = ["compare", str(recipe), "--json", "--results", str(results), *(["--dry-run"] if dry else [])]
    assert main(words) == exit_code
    error = json.loads(capsys.readouterr().out)["error"]
    assert said in error["message"] + error["hint"]
    assert not results.exists()


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


@pytest.mark.parametrize("command", ["train", "probe", "solve", "analyze"])
def test_resuming_what_is_no_comparison_says_what_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    from dynbench.runs.store import RunStore

    store = RunStore(tmp_path)
    run = store.create(command, "static")
    resume = ["compare", "--resume", run.id, "--results", str(tmp_path)]

    assert main(resume) == 2
    said = capsys.readouterr().err
    assert f"is an entry of `{command}`, not a comparison" in said
    assert f"dynbench compare RECIPE --results {tmp_path}" in said

    store.create("compare", "x", name="left")
    assert main(resume) == 2
    assert f"--resume left --results {tmp_path}" in capsys.readouterr().err


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


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with compare_display(False) as display:
        display.on_progress(CompareProgress(0, 1, [LaunchState("a", 0, 0)], 0, 1, None))
        display.on_stage("drawing figures")

    assert capsys.readouterr().err == ""


def test_epochs_are_told_once_with_the_names_of_their_arms(capsys: pytest.CaptureFixture[str]) -> None:
    arms = [LaunchState("static", 0, 0), LaunchState("partition", 0, 0)]
    lines = [(("e1",), ()), (("e1", "e2"), ("f1",)), (("e1", "e2"), ("f1",))]
    with compare_display(True) as display:
        for launch in (0, 1):
            for step, epochs in enumerate(lines):
                display.on_progress(CompareProgress(launch, 2, arms, step, 2, None, epochs))
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if "launch" not in line] == ["static #1  e1", "static #1  e2", "partition #1  f1"] * 2


def test_a_launch_tells_of_the_epochs_of_its_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*_: object, on_progress, **__: object):
        on_progress(SimpleNamespace(steps_done=1, total_steps=2, epochs=(("e1",),)))
        raise KeyboardInterrupt

    seen: list[CompareProgress] = []
    monkeypatch.setattr(launches, "run_arms", trained)
    member = LaunchState("static", 0, 0)
    state = SimpleNamespace(launches=[member], missing=[[0]], together=[[0]])
    recipe = SimpleNamespace(arms={"static": Config()}, launches=SimpleNamespace(block=1))
    comparison = SimpleNamespace(id="c-1", record=lambda: SimpleNamespace(argv=[]))
    with pytest.raises(KeyboardInterrupt):
        launches.run_launches(comparison, state, recipe, None, seen.append)  # type: ignore[arg-type]  # what is used
    assert [each.epochs for each in seen] == [(), (("e1",),)]
