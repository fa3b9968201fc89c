"""The iterations of one language model, timed by phase."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError, InvalidCxxCompiler

from dynbench.bench.allocations import peak_flops
from dynbench.bench.base import Case, Measured, NotMeasured
from dynbench.bench.model_step import ModelStep, build_model, forward_flops
from dynbench.clock import clock_for

PHASES = ("forward", "backward", "optimizer", "step")
FORWARDS = {"forward": 1, "backward": 2, "step": 3}
"""FLOPs of a phase, in those of a forward pass; those of the optimizer's step are no matrix products."""


def measure_phases(case: Case, iterations: int, warmups: Sequence[int], device: torch.device) -> list[Measured]:
    """Every phase's times, once for each number of first iterations that is left out.

    Args:
        case: size, context, type and whether it is compiled.
        iterations: that count, behind those left out.
        warmups: ascending.
        device: where to run.

    Raises:
        NotMeasured: it cannot be compiled here, or needs more memory than there is.
    """
    batch, context = case.shape
    model = build_model(str(case.columns["size"]), context, device)
    flops = forward_flops(model, batch, context)
    compiled = bool(case.columns["compiled"])
    called = cast(nn.Module, torch.compile(model)) if compiled else None
    step = ModelStep(model, batch, context, case.dtype, called)
    compile_s = _compiled_in(step) if compiled else math.nan
    times = time_phases(step, warmups[-1] + iterations)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found = []
    for warmup in warmups:
        for phase, values in zip(PHASES, times.T[:, warmup : warmup + iterations], strict=True):
            seconds = float(values.mean()) / 1e3
            achieved = FORWARDS[phase] * flops / seconds if phase in FORWARDS else math.nan
            columns: dict[str, float | int | str] = {"phase": phase, "warmup": warmup, "compile_s": compile_s}
            columns["tokens_per_s"] = batch * context / seconds
            columns |= {"achieved_flop_per_s": achieved, "mfu": achieved / peak_flops(name, case.dtype)}
            found.append(Measured(values, columns))
    return found


def time_phases(step: ModelStep, iterations: int) -> NDArray[np.float64]:
    """Milliseconds, shape [iterations, len(PHASES)]; the last is from the first mark to the last."""
    clock = clock_for(step.device)
    times = np.empty((iterations, len(PHASES)))
    for index in range(iterations):
        clock.synchronise()
        start = clock.mark()
        loss = step.forward()
        ready = clock.mark()
        step.backward(loss)
        gradients = clock.mark()
        step.update()
        end = clock.mark()
        clock.synchronise()
        marks = ((start, ready), (ready, gradients), (gradients, end), (start, end))
        times[index] = [clock.elapsed_ms(*each) for each in marks]
    return times


def _compiled_in(step: ModelStep) -> float:
    """Seconds that the first forward and backward pass take, in which code is generated."""
    start = time.perf_counter()
    try:
        step.backward(step.forward())
    except (TorchDynamoException, InductorError, InvalidCxxCompiler) as error:
        raise NotMeasured(f"torch.compile: {str(error).strip().splitlines()[0]}") from error
    step.optimizer.zero_grad()
    clock_for(step.device).synchronise()
    return time.perf_counter() - start
