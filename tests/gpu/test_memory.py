"""The peak is that of the allocator, step by step."""

from __future__ import annotations

import pytest
import torch

from dynbench.engine.rank.memory import CudaMemory, memory_meter

pytestmark = pytest.mark.gpu

MB = 1_000_000


def test_a_peak_is_that_of_its_step(device: torch.device) -> None:
    meter = memory_meter(device)
    assert isinstance(meter, CudaMemory)
    meter.reset()  # other tests of this process have peaked
    held = meter.now().peak_mb
    peaks = []
    for megabytes in (64, 256, 16):
        meter.reset()
        torch.empty(megabytes * MB, dtype=torch.uint8, device=device)
        peaks.append(meter.now().peak_mb)
    assert [peak - held for peak in peaks] == pytest.approx([64, 256, 16], abs=3)


def test_reserved_is_what_the_allocator_keeps(device: torch.device) -> None:
    meter = CudaMemory(device)
    torch.empty(128 * MB, dtype=torch.uint8, device=device)
    meter.reset()
    assert meter.now().reserved_mb >= 128 > meter.now().peak_mb
    torch.cuda.empty_cache()
    assert meter.now().reserved_mb < 128
