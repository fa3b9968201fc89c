"""What `train` makes of a finished run: its summary, its figures, its warnings; the launch itself is made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dynbench.analysis import figures
from dynbench.cli.main import main
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import launch_warnings, resolve, this_machine
from dynbench.engine.launching.run_launch import create_run
from dynbench.experiment import training
from dynbench.experiment.training import run_training
from dynbench.runs.records import StepRow, work_hash
from dynbench.runs.row_writer import RowWriter
from dynbench.runs.run import Run
from dynbench.runs.run_record import Status
from dynbench.runs.store import Naming, RunStore

Output = pytest.CaptureFixture[str]


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
            writer.write(row(step, rank, 100.0 + 7 * step * rank))
        writer.close()
    run.update(status=Status.COMPLETED, exit_code=0)
    return [run]


def row(step: int, rank: int, step_ms: float) -> StepRow:
    ids = np.arange(4) + 8 * step + 4 * rank
    return StepRow(
        step=step, rank=rank, warmup=int(step == 0), policy="static", local_batch=4, micro_batches=1,
        max_seq_len_in_batch=10, real_tokens=30, padded_tokens=40, real_tokens2=240, padded_tokens2=400,
        plan_ms=0.1, data_ms=0.1, forward_ms=0.3 * step_ms, backward_ms=0.3 * step_ms, sync_ms=0.2 * step_ms,
        optimizer_ms=1.0, compute_ms=0.6 * step_ms, step_time_ms=step_ms, peak_mem_mb=1.0, reserved_mem_mb=1.0,
        loss=0.5, work_hash=work_hash(ids, np.full(4, 10)), skipped=0, weight=4.0,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(training, "launch_arms", launched)
    return RunStore(tmp_path / "results")


TINY = ("--nproc", "2", "--device", "cpu", "--global-batch", "8", "--steps", "5", "--warmup-steps", "1")


@pytest.mark.slow
def test_a_run_is_drawn_at_its_end(store: RunStore, capsys: Output) -> None:
    assert main(["train", *TINY, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    drawn = [Path(path) for path in shown["figures"]]
    assert {path.stem for path in drawn} >= {"timeline", "step_time", "time_breakdown"}
    assert all(path.suffix == ".png" and path.stat().st_size > 0 for path in drawn)
    assert {path.parent for path in drawn} == {Path(shown["run"]["path"]) / "figures"}

    assert main(["analyze", shown["run"]["id"], "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["figures"]) == sorted(shown["figures"])


def test_figures_that_cannot_be_drawn_do_not_fail_the_run(
    store: RunStore, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr(figures, "draw_figures", fail)
    assert main(["train", *TINY, "--name", "a", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["figures"] == []
    assert json.loads(printed.out)["summary"]["steps"] == 5
    assert "warning: no figures: RuntimeError: no font; dynbench analyze a draws them" in printed.err
    assert store.resolve("a").status is Status.COMPLETED


def test_launches_of_a_comparison_are_not_drawn_and_not_warned_about_one_by_one(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "draw_figures", lambda *_: pytest.fail("drawn"))
    config = Config.model_validate(
        {"train": {"global_batch": 8}, "launch": {"nproc": 2, "device": "cpu", "comm_model": "none"}}
    )
    result = run_training(config, store, warn_unread=False)
    assert result is not None and result.figures == ()
    assert result.run.record().warnings == []


def test_a_setting_without_effect_is_said_once_and_kept(store: RunStore, capsys: Output) -> None:
    assert main(["train", *TINY, "--name", "a", "--no-figures", "--set", "launch.comm_model=none"]) == 0
    (warning,) = store.resolve("a").record().warnings
    assert warning.startswith("launch.comm_model: 'none' has no effect")
    assert capsys.readouterr().err.count("launch.comm_model") == 1


def test_a_dry_run_says_so_too(store: RunStore, capsys: Output) -> None:
    unread = ("--cost-type", "attention", "--set", "schedule.replan_steps=3")
    assert main(["train", *TINY, *unread, "--dry-run", "--json"]) == 0
    printed = capsys.readouterr()
    warnings = json.loads(printed.out)["warnings"]
    assert [line.partition(":")[0] for line in warnings] == ["schedule.cost_type", "schedule.replan_steps"]
    assert [line for line in printed.err.splitlines() if line.startswith("warning: ")] == [
        f"warning: {line}" for line in warnings
    ]
    assert not store.root.exists()


def test_settings_that_a_probe_made_first_has_read_are_not_named(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "make_probe", lambda *_: "auto")
    config = Config.model_validate(
        {
            "schedule": {"mode": "dynamic", "micro_batches": "auto"},
            "train": {"global_batch": 8},
            "launch": {"nproc": 2, "device": "cpu"},
            "probe": {"run": "auto", "repeats": 2},
        }
    )
    result = run_training(config, store)
    assert result is not None
    assert result.run.record().warnings == []


@pytest.mark.parametrize("save", [True, False])
def test_it_ends_with_five_lines(store: RunStore, capsys: Output, save: bool) -> None:
    assert main(["train", *TINY, "--name", "a", "--no-figures", *(["--save-model"] if save else [])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:10].strip() for line in lines] == ["trained", "to gain", "loss", "warnings", "where"]
    assert "static on 2 ranks" in lines[0] and "25 % of token positions are padding" in lines[1]
    assert lines[-1].endswith(f"next: dynbench {'eval' if save else 'analyze'} a")


def test_the_metrics_are_shown_where_asked_for(store: RunStore, capsys: Output) -> None:
    assert main(["train", *TINY, "--no-figures", "-v"]) == 0
    assert "padding, padded over real tokens" in capsys.readouterr().out
