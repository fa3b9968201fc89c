"""Time of a language model's step by phase: its size, context, type and compilation, and what warm-up leaves out.

Phases are those of one loop, forward (with the activations that backward needs), backward, the step of AdamW, and all
three. The first case is a fresh process's: its rows tell the same series of iterations with fewer of the first left
out, which is what warm-up is for. Models are causal_lm's, attention torch's own; bf16 is autocast over fp32 weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dynbench.bench.base import Benchmark, Case, Columns, Measured, NotMeasured, Row, model_cases, ratios, titled
from dynbench.clock import clock_for
from dynbench.plugins.benchmarks import TransformerOptions

if TYPE_CHECKING:
    from dynbench.bench.model_step import ModelStep
    from dynbench.engine.rank.rank_process import RankContext

_HOPPER = {"float32": 67e12, "bfloat16": 989e12, "float16": 989e12}
_PEAKS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H200": _HOPPER,
    "NVIDIA A100-SXM4-40GB": {"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
    "NVIDIA A100-SXM4-80GB": {"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
}
"""FLOP/s of dense products by device name and type, from the data sheets of NVIDIA; fp32 without TF32, as torch has it
unless told otherwise."""
WAYS = {"eager": 0, "compiled": 1}


class Transformer(Benchmark):
    """The phases of a step of every model."""

    options: TransformerOptions
    headers: ClassVar = titled(
        *("size", "context", "dtype", "compiled", "warmup", "phase", "mean", "sd", "p50"),
        *("tokens_per_s", "achieved_flop_per_s", "mfu"),
        warmup="warm-up",
        tokens_per_s="tokens/s",
        achieved_flop_per_s="FLOP/s",
        mfu="MFU",
    )

    def cases(self) -> Sequence[Case]:
        """Every model: sizes and contexts as given, of each the types, eager before compiled."""
        return model_cases(self.options, "compiled", {way: WAYS[way] for way in self.options.execution})

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """The phases of one model; of the first, also with fewer iterations left out."""
        from dynbench.bench.model_step import ModelStep, build_model, forward_flops

        options, device = self.options, context.device
        earlier = options.warmups if case.name == self.cases()[0].name else ()
        warmups = sorted({*earlier, options.warmup})
        batch, length = case.shape
        model = build_model(str(case.columns["size"]), length, device)
        flops = forward_flops(model, batch, length)
        compiled = bool(case.columns["compiled"])
        called = cast(nn.Module, torch.compile(model)) if compiled else None
        step = ModelStep(model, batch, length, case.dtype, called)
        compile_s = _compiled_in(step) if compiled else math.nan
        times = time_phases(step, warmups[-1] + options.iterations)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        found = []
        for warmup in warmups:
            for phase, values in zip(PHASES, times.T[:, warmup : warmup + options.iterations], strict=True):
                seconds = float(values.mean()) / 1e3
                achieved = FORWARDS[phase] * flops / seconds if phase in FORWARDS else math.nan
                columns: Columns = {"phase": phase, "warmup": warmup, "compile_s": compile_s}
                columns["tokens_per_s"] = batch * length / seconds
                columns |= {"achieved_flop_per_s": achieved, "mfu": achieved / peak_flops(name, case.dtype)}
                found.append(Measured(values, columns))
        return found

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Mean time of a step over that of the eager one and of the fp32 one, and what warm-up changes."""
        wanted = (self.options.warmup, "step")
        steps = [row for row in rows if (row.columns.get("warmup"), row.columns.get("phase")) == wanted]
        compiled = ratios(
            steps,
            lambda row: f"{row.columns['size']} {row.columns['context']} {row.dtype}",
            lambda row: str(row.columns["compiled"]),
            *("0", "mean"),
        )
        half = ratios(
            [row for row in steps if not row.columns["compiled"]],
            lambda row: f"{row.columns['size']} {row.columns['context']}",
            lambda row: row.dtype,
            *("float32", "mean"),
        )
        of_eager = {name: ratio["1"] for name, ratio in compiled.items() if "1" in ratio}
        of_float32 = {
            f"{name} {dtype}": ratio for name, by in half.items() for dtype, ratio in by.items() if dtype != "float32"
        }
        warmups = {
            str(row.columns["warmup"]): {"mean_ms": row.mean, "sd_ms": row.sd}
            for row in rows
            if row.columns.get("phase") == "step" and row.case == rows[0].case
        }
        return {"compiled_of_eager": of_eager, "half_of_float32": of_float32, "step_by_warmup": warmups}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same in lines."""
        found = self.summary(rows)
        lines = []
        for key, said in (("compiled_of_eager", "the eager one"), ("half_of_float32", "float32")):
            lines += [f"a step of {name} takes {ratio:.3g} of the time of {said}" for name, ratio in found[key].items()]
        by_warmup = found["step_by_warmup"]
        if len(by_warmup) > 1:
            each = (f"{count}: {at['mean_ms']:.3g} ± {at['sd_ms'] or 0:.2g} ms" for count, at in by_warmup.items())
            lines.append(f"step of {rows[0].case} by warm-up iterations: {', '.join(each)}")
        return lines


def peak_flops(device: str, dtype: str) -> float:
    """FLOP/s; NaN where it is not known.

    Args:
        device: as torch names it.
        dtype: of what is multiplied.
    """
    return _PEAKS.get(device, {}).get(dtype, math.nan)


PHASES = ("forward", "backward", "optimizer", "step")
FORWARDS = {"forward": 1, "backward": 2, "step": 3}
"""FLOPs of a phase, in those of a forward pass; those of the optimizer's step are no matrix products."""


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
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    start = time.perf_counter()
    try:
        step.backward(step.forward())
    except (TorchDynamoException, InductorError, InvalidCxxCompiler) as error:
        raise NotMeasured(f"torch.compile: {str(error).strip().splitlines()[0]}") from error
    step.optimizer.zero_grad()
    clock_for(step.device).synchronise()
    return time.perf_counter() - start
