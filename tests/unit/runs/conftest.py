"""A registry and a run in it, for all tests of this folder."""

from __future__ import annotations

import pytest

from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


@pytest.fixture
def run(store: RunStore) -> Run:
    return store.create("train", "static", name="mine", argv=["dynbench", "train"])


@pytest.fixture
def full_disk() -> OSError:
    return OSError(28, "No space left on device")
