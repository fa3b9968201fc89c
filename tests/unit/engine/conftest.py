"""A run that ranks write into, and a clock that tests move."""

from __future__ import annotations

from pathlib import Path

import pytest
from hands import Hands

from dynbench.runs.run import Run


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Of a launch whose ranks have written nothing yet."""
    run = Run(tmp_path / "run")
    run.ranks_dir.mkdir(parents=True)
    return run
