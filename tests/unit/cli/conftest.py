"""Tests of commands; the figures' own tests render them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.runs.store import RunStore

LAUNCHERS = (
    "engine.launching.torchrun.run_torchrun",
    "engine.launching.run_launch.process_group",
    "probe.prober.probe",
)


@pytest.fixture(autouse=True)
def _figures(unrendered: None) -> None:
    """None is rendered."""


@pytest.fixture
def store(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """An empty registry, which commands take for theirs; the folder that it will be in is the working one."""
    monkeypatch.setenv("DYNBENCH_RESULTS", str(store.root))
    monkeypatch.chdir(store.root.parent)
    return store


@pytest.fixture
def results(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this registry, not made yet; whatever would be launched fails the test."""
    for place in LAUNCHERS:
        monkeypatch.setattr(f"dynbench.{place}", lambda *_: pytest.fail("it was launched"))
    return store.root
