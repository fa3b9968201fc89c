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

    def peak_mb(self) -> float | None:
        """Largest use since the last reset, MB; None where it cannot be told apart from that of other arms."""

    def reserved_mb(self) -> float | None:
        """Memory held from the system now, MB; None likewise."""

    def enter(self) -> None:
        """From here on, what is allocated in this process is this arm's."""

    def leave(self) -> None:
        """Up to here it was."""


class ProcessMeter(MemoryMeter, Protocol):
    """Of a process with one arm: both are known."""

    def peak_mb(self) -> float:
        """Largest use since the last reset, MB."""

    def reserved_mb(self) -> float:
        """Memory held from the system now, MB."""


class _OneArm:
    """The process is one arm's."""

    def enter(self) -> None:
        """All is this arm's."""

    def leave(self) -> None:
        """All is this arm's."""


class CudaMemory(_OneArm):
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


class SharedCudaMemory:
    """PyTorch's caching allocator on one device, for one of several arms: what rests for the others does not count.

    Between `enter` and `leave` only this arm allocates; it is made before the arm allocates anything.
    """

    source = (
        "peak bytes of the CUDA caching allocator less those that rest for the other arms of the launch, reset every "
        "step; what the allocator reserves is for all arms together and not stated"
    )

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = 0
        self.enter()

    def enter(self) -> None:
        """All that is allocated beyond this arm's own rests for others."""
        self._others = torch.cuda.memory_allocated(self._device) - self._own

    def leave(self) -> None:
        """What is allocated beyond the others' is this arm's."""
        self._own = torch.cuda.memory_allocated(self._device) - self._others

    def reset(self) -> None:
        """Forget the allocator's peak."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_mb(self) -> float:
        """Most bytes allocated by this arm's tensors, MB."""
        return mb(torch.cuda.max_memory_allocated(self._device) - self._others)

    def reserved_mb(self) -> None:
        """Reserved for all arms."""


class UnknownMemory(_OneArm):
    """A process on a CPU that holds several arms: its resident memory is that of all of them."""

    source = "unknown: the process holds several arms, and its resident memory is that of all of them"

    def reset(self) -> None:
        """There is nothing to be measured."""

    def peak_mb(self) -> None:
        """Not known."""

    def reserved_mb(self) -> None:
        """Not known."""


class ResidentMemory(_OneArm):
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


class LifetimePeak(_OneArm):
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


def memory_meter(device: torch.device) -> ProcessMeter:
    """The best meter that the device and the system offer."""
    if device.type == "cuda":
        return CudaMemory(device)
    try:
        return ResidentMemory()
    except OSError:
        return LifetimePeak()


def arm_meter(device: torch.device) -> MemoryMeter:
    """A meter of one arm in a process that holds several."""
    return SharedCudaMemory(device) if device.type == "cuda" else UnknownMemory()
