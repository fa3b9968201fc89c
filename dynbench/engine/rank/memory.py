"""Peak memory of one step: of the CUDA allocator, or of the process on a CPU."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Protocol

import torch

from dynbench.units import mb

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = b"5"


class MemoryMeter(Protocol):
    """Peak since the last reset, and what is held now."""

    source: str
    """What the numbers are, for `env.json`."""

    def reset(self) -> None:
        """Forget the peak."""

    def peak_mb(self) -> float:
        """Largest use since the last reset, MB."""

    def reserved_mb(self) -> float:
        """Memory held from the system now, MB."""


class CudaMemory:
    """PyTorch's caching allocator on one device."""

    source = "peak and reserved bytes of the CUDA caching allocator, reset every step"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Forget the allocator's peak."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_mb(self) -> float:
        """Most bytes allocated by tensors, MB."""
        return mb(torch.cuda.max_memory_allocated(self._device))

    def reserved_mb(self) -> float:
        """Bytes that the allocator holds, MB."""
        return mb(torch.cuda.memory_reserved(self._device))


class ResidentMemory:
    """The process's resident memory; writing 5 to clear_refs resets its peak (proc(5), Linux 4.0).

    Raises:
        OSError: the kernel does not offer the files, or forbids the reset.
    """

    source = "peak resident memory of the process (VmHWM), reset every step; reserved is what is resident now (VmRSS)"

    def __init__(self) -> None:
        self._clear = os.open(_CLEAR_REFS, os.O_WRONLY)
        self._status = os.open(_STATUS, os.O_RDONLY)
        self.reset()
        if not self._read_kb(b"VmHWM:"):
            raise OSError(f"{_STATUS} has no VmHWM")

    def reset(self) -> None:
        """Set the peak to what is resident now; about 10 microseconds."""
        os.pwrite(self._clear, _RESET_PEAK, 0)

    def peak_mb(self) -> float:
        """Most resident memory, MB."""
        return mb(self._read_kb(b"VmHWM:") * 1024)

    def reserved_mb(self) -> float:
        """Resident memory now, MB."""
        return mb(self._read_kb(b"VmRSS:") * 1024)

    def _read_kb(self, key: bytes) -> int:
        for line in os.pread(self._status, 8192, 0).splitlines():
            if line.startswith(key):
                return int(line.split()[1])
        return 0


class LifetimePeak:
    """The process's peak since it started; the fallback where it cannot be reset."""

    source = "peak resident memory of the process since its start (getrusage): this system cannot reset it"

    def reset(self) -> None:
        """The system offers no reset."""

    def peak_mb(self) -> float:
        """Most resident memory since the start, MB."""
        unit = 1 if sys.platform == "darwin" else 1024
        return mb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)

    def reserved_mb(self) -> float:
        """The same: what is resident now is not known."""
        return self.peak_mb()


def memory_meter(device: torch.device) -> MemoryMeter:
    """The best meter that the device and the system offer."""
    if device.type == "cuda":
        return CudaMemory(device)
    try:
        return ResidentMemory()
    except OSError:
        return LifetimePeak()
