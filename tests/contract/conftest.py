"""Ranks that stay for all contract tests of a worker, beside the two of `tests/conftest.py`; runs for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from strategy_jobs import SETTINGS
from warm import gloo_ranks

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.launching.run_launch import create_run
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

three, four = gloo_ranks(3), gloo_ranks(4)
mortal = gloo_ranks(2, "module")
"""For tests that end them."""


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., tuple[Run, Config]]:
    """A run of a few uneven steps that is not yet trained, with its resolved configuration."""

    def make(*settings: str) -> tuple[Run, Config]:
        store = RunStore(tmp_path / "results")
        resolved = resolve(load_config(None, [*SETTINGS, *settings]), this_machine(), store)
        return create_run(resolved, store, ()), resolved.config

    return make
