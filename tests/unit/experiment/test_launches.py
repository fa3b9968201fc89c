"""What a comparison tells its launches, and what it has said once for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.cli import compare
from dynbench.cli.main import main
from dynbench.errors import WorkerFailed
from dynbench.experiment import launches
from dynbench.runs.store import RunStore


def test_arms_are_warned_about_together_and_launches_draw_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, object]] = []

    def training(*_: object, **options: object) -> None:
        told.append(options)
        raise WorkerFailed("enough")

    monkeypatch.setattr(launches, "run_training", training)
    shown = ["--window", "16", "--device", "cpu", "--results", str(tmp_path), "--name", "c"]
    assert main(["compare", "quickstart", "--launches", "2", *shown]) == 3
    (options,) = told
    assert options["warn_unread"] is False
    assert not options.get("figures", False)
    (warning,) = RunStore(tmp_path).resolve("c").record().warnings
    assert warning.startswith("schedule.window: 16 has no effect: policy 'static, prefix, partition'")


def test_nothing_is_registered_where_an_arm_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_start", lambda *_: pytest.fail("registered"))
    assert main(["compare", "quickstart", "--global-batch", "63", "--nproc", "2", "--results", str(tmp_path)]) == 2
