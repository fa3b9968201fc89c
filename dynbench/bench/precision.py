"""What half precision does: sums of many small terms, the types under autocast, and the time of a step.

Layer norm subtracts a mean and divides by a root of squares: fp16 overflows beyond 65,504 and keeps 11 bits, bf16 has
the range of fp32 but 8 bits, so that on GPUs autocast computes norms and losses in fp32 with either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dynbench.bench.base import Benchmark, Case, Measured, Row, titled
from dynbench.plugins.benchmarks import PrecisionOptions

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dynbench.engine.rank.rank_process import RankContext

TERM = 0.01
SUMS = {
    "terms and sum in fp32": ("float32", "float32", False),
    "terms and sum in fp16": ("float16", "float16", False),
    "terms in fp16, sum in fp32": ("float16", "float32", False),
    "terms in fp16 cast to fp32, sum in fp32": ("float16", "float32", True),
}
"""Label to the type of the terms, that of the sum, and whether terms are cast before they are added."""
PARTS = ("parameters", "first layer", "layer norm", "logits", "loss", "gradients")
HALF = ("float16", "bfloat16")


class PrecisionStudy(Benchmark):
    """Sums, types and times."""

    options: PrecisionOptions
    headers: ClassVar = titled(
        *("case", "shown", "p50", "unit", "reference_error"), p50="p50", reference_error="difference from float64"
    )

    def cases(self) -> Sequence[Case]:
        """Four sums, the types of six parts under two autocasts, and three times."""
        sums = [
            Case(f"sum: {label}", [self.options.terms], types[1], {"study": "sum"}) for label, types in SUMS.items()
        ]
        types = [Case(f"type under {half}: {part}", [], half, {"study": "type"}) for half in HALF for part in PARTS]
        shape = [self.options.samples, self.options.features]
        times = [Case(f"forward and backward in {kind}", shape, kind, {"study": "time"}) for kind in ("float32", *HALF)]
        return [*sums, *types, *times]

    def measure(self, case: Case, context: RankContext) -> Measured:
        """One sum, one type, or the iterations of a time."""
        import torch

        from dynbench.bench.measuring import time_calls

        options, device, label = self.options, context.device, case.name.split(": ")[-1]
        if case.columns["study"] == "sum":
            of_terms, of_sum, cast = SUMS[label]
            total = torch.tensor(0, dtype=getattr(torch, of_sum), device=device)
            term = torch.tensor(TERM, dtype=getattr(torch, of_terms), device=device)
            for _ in range(options.terms):
                total += term.type(torch.float32) if cast else term
            value = float(total)
            return Measured(np.array([value]), {"shown": f"{value:.6g}"}, abs(value - TERM * options.terms), unit="1")
        if case.columns["study"] == "type":
            found = types_under(case.dtype, device)[label]
            shown = {"shown": str(found).removeprefix("torch.")}
            return Measured(np.array([8.0 * found.itemsize]), shown, unit="bits")
        model = toy_model(options.features, device)
        states = torch.randn(options.samples, options.features, device=device)

        def once() -> None:
            with torch.autocast(device.type, getattr(torch, case.dtype), enabled=case.dtype != "float32"):
                loss = _forward(model, states, lambda *_: None)
            torch.autograd.backward(loss)

        times = time_calls(once, options.warmup + options.iterations, device)
        return Measured(times[options.warmup :], {"shown": ""})

    def said(self, rows: Sequence[Row]) -> list[str]:
        """Which sum is off by how much, and what mixed precision takes."""
        lines = [f"{row.case}: off by {row.reference_error:.3g}" for row in rows if row.reference_error]
        times = {row.dtype: row.p50 for row in rows if row.columns["study"] == "time" and row.p50 is not None}
        full = times.pop("float32", None)
        for kind, ms in times.items():
            if full:
                lines.append(f"mixed precision with {kind} takes {ms / full:.3g} of the time of float32")
        return lines


def toy_model(width: int, device: torch.device) -> nn.ModuleDict:
    """Two linear layers with a layer norm between them, with the values of seed 0."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = {"first": nn.Linear(width, width, bias=False), "norm": nn.LayerNorm(width)}
    return nn.ModuleDict({**layers, "last": nn.Linear(width, 10, bias=False)}).to(device)


def _forward(model: nn.ModuleDict, states: Tensor, seen: Callable[[str, Tensor], object]) -> Tensor:
    """The loss, after `seen` of every part's output."""
    import torch

    first = torch.relu(model["first"](states))
    seen("first layer", first)
    norm = model["norm"](first)
    seen("layer norm", norm)
    logits: Tensor = model["last"](norm)
    seen("logits", logits)
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(states), dtype=torch.long, device=states.device))
    seen("loss", loss)
    return loss


def types_under(half: str, device: torch.device) -> dict[str, torch.dtype]:
    """The type of each of `PARTS` under autocast to half precision."""
    import torch

    model, found = toy_model(16, device), {}
    with torch.autocast(device.type, getattr(torch, half)):
        loss = _forward(model, torch.ones(4, 16, device=device), lambda part, value: found.update({part: value.dtype}))
    torch.autograd.backward(loss)
    weight = next(model.parameters())
    assert weight.grad is not None
    return {"parameters": weight.dtype, **found, "gradients": weight.grad.dtype}
