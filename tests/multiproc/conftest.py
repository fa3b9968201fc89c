"""Real launches, made once and looked at by several tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import forked_ranks
from multiproc.launches import TINY, Launch

from dynbench.config.layers import load_config
from dynbench.engine.launching.run_launch import launch_arms
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share launches share a worker of pytest-xdist, and so do those of one module."""
    for item in items:
        if item.path.parent == HERE and isinstance(item, pytest.Function):
            shares = "store" in item.fixturenames
            item.add_marker(pytest.mark.xdist_group("launches" if shares else item.path.stem))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A registry for the runs of the session."""
    return RunStore(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def launch(store: RunStore) -> Launch:
    """Launch a tiny run with some settings changed, its ranks forked; the same settings give the same run again."""
    made: dict[tuple[str, ...], Run] = {}

    def run(*overrides: str) -> Run:
        if overrides not in made:
            with forked_ranks():
                [made[overrides]] = launch_arms([(load_config(None, [*TINY, *overrides]), {})], store)
        return made[overrides]

    return run


@pytest.fixture(scope="session")
def static_run(launch: Launch) -> Run:
    """Static on two ranks."""
    return launch("schedule.mode=static")
