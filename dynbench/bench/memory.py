"""Memory of a language model by phase: forward only, forward with what backward needs, and a full step with AdamW.

Peaks are whole: parameters, what the optimizer keeps, and what the phase takes beside them. Beside the peaks stand the
residual stream between two layers, by formula and as measured, and the largest tensors with where they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynbench.bench.base import Benchmark, Case, Columns, Measured, Row, model_cases, titled
from dynbench.bench.measuring import largest, thinned, watch
from dynbench.bench.record import add_line
from dynbench.plugins.benchmarks import MemoryOptions
from dynbench.units import mb

if TYPE_CHECKING:
    from dynbench.bench.model_step import ModelStep
    from dynbench.engine.rank.rank_process import RankContext

PHASES = ("forward", "forward_saved", "step")
"""Without gradients; with the activations kept; forward, backward and the optimizer's step."""
PARAMETER_BYTES = 4
TIMELINES_FILE = "timelines.jsonl"
"""In the run's folder of raw files; a line per case."""


class Memory(Benchmark):
    """Every phase of every model."""

    options: MemoryOptions
    headers: ClassVar = titled(
        *("size", "context", "dtype", "phase", "quantity", "p50", "before_mb", "saved_mb", "reference_error"),
        *("times", "operator", "stack"),
        p50="MB",
        before_mb="held before (MB)",
        saved_mb="held after (MB)",
        reference_error="formula is off by (MB)",
        stack="made in",
    )

    def cases(self) -> Sequence[Case]:
        """Every phase of every model, short contexts first."""
        return model_cases(self.options, "phase", {phase: phase for phase in PHASES})

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """The peak of one phase, and its largest tensors."""
        from dynbench.bench.model_step import STATE_BYTES, ModelStep, build_model
        from dynbench.sync.fully_sharded_streams import blocks_of

        batch, length = case.shape
        phase = str(case.columns["phase"])
        needed = STATE_BYTES if phase == "step" else PARAMETER_BYTES
        model = build_model(str(case.columns["size"]), length, context.device, needed)
        step = ModelStep(model, batch, length, case.dtype)
        work = WORK[phase]
        work(step)  # what is made once, as the optimizer's moments
        before = storage_bytes([*model.parameters(), *model.buffers(), *moments_of(step.optimizer)])
        history = None if self.folder is None else self.folder / f"memory_{case.name.replace(' ', '_')}.pickle"
        result, changes = watch(lambda: work(step), context.device, history)
        del result
        if self.folder is not None:
            ms, nbytes = thinned(changes)
            timeline = {"ms": ms.tolist(), "mb": ((before + nbytes) / 1e6).tolist()}
            add_line(self.folder / "ranks" / TIMELINES_FILE, {**case.columns, "dtype": case.dtype, **timeline})
        columns: Columns = {"quantity": "peak", "before_mb": mb(before), "saved_mb": mb(changes.after)}
        found = [Measured(np.array([mb(before + changes.most)]), columns, unit="MB")]
        if phase == "forward_saved":
            config: Any = model.config
            found.append(_residual(step, blocks_of(model), residual_bytes(batch, length, config.hidden_size)))
        for each in largest(lambda: work(step), self.options.largest):
            tensor: Columns = {"quantity": "tensor", "times": each.times, "operator": each.operator}
            found.append(Measured(np.array([mb(each.nbytes)]), {**tensor, "stack": each.stack}, unit="MB"))
        return found

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The peak of each phase by model, MB."""
        peaks: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.columns.get("quantity") == "peak" and row.p50 is not None:
                model = row.case.removesuffix(f" {row.columns['phase']}")
                peaks.setdefault(model, {})[str(row.columns["phase"])] = row.p50
        return {"peak_mb": peaks}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """How phases and types compare, and whether the formula of the residual stream holds."""
        lines = []
        for model, of_phase in self.summary(rows)["peak_mb"].items():
            if "forward" in of_phase and "step" in of_phase:
                times = of_phase["step"] / of_phase["forward"]
                lines.append(f"{model}: a full step peaks at {times:.3g} times the memory of forward only")
        for row in rows:
            if row.columns.get("quantity") == "residual" and row.reference_error:
                off = f"{row.reference_error:.3g} MB"
                lines.append(f"{row.case}: the residual stream is off its formula, 4 B x batch x context x d, by {off}")
        return lines


def residual_bytes(batch: int, context: int, width: int) -> int:
    """Of the residual stream between two layers: fp32, under autocast too, as what is added to it is raised."""
    return 4 * batch * context * width


def _step(step: ModelStep) -> None:
    step.backward(step.forward())
    step.update()


WORK: dict[str, Callable[[ModelStep], Tensor | None]] = {
    "forward": lambda step: torch.no_grad()(step.forward)(),
    "forward_saved": lambda step: step.forward(),
    "step": _step,
}
"""What each phase runs; what it returns lives until it was watched."""


def moments_of(optimizer: Optimizer) -> list[Tensor]:
    """What it keeps of its parameters."""
    return [each for state in optimizer.state.values() for each in state.values() if isinstance(each, Tensor)]


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors hold, those of one storage once."""
    storages = (each.untyped_storage() for each in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _residual(step: ModelStep, blocks: list[nn.Module], formula: int) -> Measured:
    """What the first block of the model gives to the next."""
    seen: list[int] = []

    def note(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        stream = output if isinstance(output, Tensor) else output[0]
        seen.append(stream.untyped_storage().nbytes())

    hook = blocks[0].register_forward_hook(note)
    step.forward()
    hook.remove()
    measured = mb(seen[0])
    columns: Columns = {"quantity": "residual", "formula_mb": mb(formula)}
    return Measured(np.array([measured]), columns, abs(measured - mb(formula)), unit="MB")
