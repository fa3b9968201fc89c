"""Tests of commands; the figures' own tests render them."""

from __future__ import annotations

import pytest

from dynbench.runs.store import RunStore


@pytest.fixture(autouse=True)
def _figures(unrendered: None) -> None:
    """None is rendered."""


@pytest.fixture
def store(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """An empty registry, which commands take for theirs."""
    monkeypatch.setenv("DYNBENCH_RESULTS", str(store.root))
    return store
