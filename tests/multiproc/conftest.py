"""Real launches, made once and looked at by several tests."""

from __future__ import annotations

import pytest
from multiproc.launches import TINY, Launch

from dynbench.config.load import load_config
from dynbench.engine.launching.run_launch import launch_training
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A registry for the runs of the session."""
    return RunStore(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def launch(store: RunStore) -> Launch:
    """Launch a tiny run with some settings changed; the same settings give the same run again."""
    made: dict[tuple[str, ...], Run] = {}

    def run(*overrides: str) -> Run:
        if overrides not in made:
            made[overrides] = launch_training(load_config(None, [*TINY, *overrides]), store)
        return made[overrides]

    return run


@pytest.fixture(scope="session")
def static_run(launch: Launch) -> Run:
    """Static on two ranks."""
    return launch("schedule.mode=static")


@pytest.fixture(scope="session")
def partition_run(launch: Launch) -> Run:
    """Partition on two ranks."""
    return launch("schedule.mode=dynamic")
