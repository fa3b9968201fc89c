"""What nsys profiles, a step with ranges: `python -m dynbench.bench.nsys_target SIZE CONTEXT BATCH DTYPE DEVICE`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from dynbench.bench.model_step import ModelStep
from dynbench.bench.nsys_profile import Phases, ranged_model, span

WARMUP = 5


def run_step(arguments: Sequence[str]) -> None:
    """Warm up, then every phase once between the marks of CUDA's profiler.

    Args:
        arguments: size, context, batch, type, and cpu or cuda.
    """
    size, context, batch, dtype, kind = arguments
    device = torch.device(kind)
    model = ranged_model(size, int(context), device)
    phases = Phases(ModelStep(model, int(batch), int(context), dtype))
    for index in range(WARMUP + 1):
        if index == WARMUP and device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # torch's
        for phase, run in phases.by_name.items():
            with span(phase):
                run()
            if device.type == "cuda":
                torch.cuda.synchronize()
    if device.type == "cuda":
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]  # torch's


if __name__ == "__main__":
    run_step(sys.argv[1:])
