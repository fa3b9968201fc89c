"""The peak follows what the process holds, and forgets it when reset."""

from __future__ import annotations

import mmap

import pytest
import torch

from dynbench.engine.rank import memory
from dynbench.engine.rank.memory import LifetimePeak, ResidentMemory, memory_meter

MB = 1_000_000


def resident() -> ResidentMemory:
    try:
        return ResidentMemory()
    except OSError as error:
        pytest.skip(f"the kernel cannot reset the peak: {error}")


def hold_for_a_moment(size: int) -> None:
    with mmap.mmap(-1, size) as block:
        block.write(b"x" * size)


def test_peak_is_seen_and_forgotten() -> None:
    meter = resident()
    meter.reset()
    before = meter.peak_mb()
    hold_for_a_moment(64 * MB)
    assert meter.peak_mb() > before + 60
    meter.reset()
    assert meter.peak_mb() < before + 60
    assert meter.reserved_mb() <= meter.peak_mb() + 1


def test_lifetime_peak_never_falls() -> None:
    meter = LifetimePeak()
    before = meter.peak_mb()
    meter.reset()
    assert meter.peak_mb() >= before > 10


def test_fallback_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("not here")

    monkeypatch.setattr(memory, "ResidentMemory", refuse)
    assert "cannot reset" in memory_meter(torch.device("cpu")).source
