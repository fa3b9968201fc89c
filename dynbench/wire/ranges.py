"""Named parts of a step, as profilers show them: torch's, and on GPUs those that read NVTX, like Nsight Systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PREFIX = "dynbench::"
"""Of every name."""


@contextmanager
def named_range(name: str, device: torch.device) -> Iterator[None]:
    """What runs inside has this name in a profile; it takes a few microseconds where nobody looks."""
    with torch.profiler.record_function(f"{PREFIX}{name}"):
        if device.type != "cuda":
            yield
            return
        torch.cuda.nvtx.range_push(f"{PREFIX}{name}")  # type: ignore[no-untyped-call]  # torch's is untyped
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]  # as above
