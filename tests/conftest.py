"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from warm import WarmRanks

settings.register_profile("same", derandomize=True)
settings.register_profile("search")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
"""`make test` draws the same examples every time; HYPOTHESIS_PROFILE=search draws new ones."""

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real text, vocabularies and length traces; the test is skipped where it is absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} does not exist")
    return folder


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    """Two gloo ranks that stay for the whole session; they start when first asked something."""
    warm = WarmRanks(tmp_path_factory.mktemp("meet"))
    yield warm
    warm.close()
