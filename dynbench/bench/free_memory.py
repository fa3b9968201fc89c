"""Memory that a case may still take."""

from __future__ import annotations

from pathlib import Path

import torch

from dynbench.runs.cgroup import memory_available_bytes


def free_bytes(device: torch.device) -> int:
    """Bytes: of the GPU, or of the machine within what this process's groups allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    free = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))
    allowed = memory_available_bytes()
    return free if allowed is None else min(free, allowed)
