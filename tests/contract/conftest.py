"""Ranks that stay for all contract tests of a worker; the two of `tests/conftest.py` besides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm import WarmRanks


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    """Three gloo ranks."""
    warm = WarmRanks(tmp_path_factory.mktemp("meet"), 3)
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    """Four gloo ranks."""
    warm = WarmRanks(tmp_path_factory.mktemp("meet"), 4)
    yield warm
    warm.close()
