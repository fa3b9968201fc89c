"""What only a GPU can show; without one, every test here says so and is skipped."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def device() -> torch.device:
    """The first GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU that torch can use")
    return torch.device("cuda", 0)


@pytest.fixture
def two_gpus() -> None:
    """NCCL wants a GPU for every rank."""
    if (found := torch.cuda.device_count()) < 2:
        pytest.skip(f"needs two GPUs, {found} found")
