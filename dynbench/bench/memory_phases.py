"""One phase of a language model with its memory watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynbench.bench.allocations import Changes, largest, thinned, watch
from dynbench.bench.base import Case, Measured
from dynbench.bench.memory import TIMELINES_FILE, residual_bytes
from dynbench.bench.model_step import STATE_BYTES, ModelStep, build_model
from dynbench.bench.record import add_line
from dynbench.plugins.benchmarks import MemoryOptions
from dynbench.sync.fully_sharded_streams import blocks_of
from dynbench.units import mb

PARAMETER_BYTES = 4


def measure_phase(case: Case, options: MemoryOptions, device: torch.device, folder: Path | None) -> list[Measured]:
    """The peak of the phase, the residual stream where it is kept, and the largest tensors.

    Args:
        case: size, context, type and phase.
        options: how many tensors to tell.
        device: where to run.
        folder: of the run, for the timeline and on CUDA the memory history; None keeps neither.

    Raises:
        NotMeasured: parameters and what the optimizer keeps of them need more memory than there is.
    """
    batch, context = case.shape
    phase = str(case.columns["phase"])
    needed = STATE_BYTES if phase == "step" else PARAMETER_BYTES
    model = build_model(str(case.columns["size"]), context, device, needed)
    step = ModelStep(model, batch, context, case.dtype)
    work = WORK[phase]
    work(step)  # what is made once, as the optimizer's moments
    moments = (each for state in step.optimizer.state.values() for each in state.values() if isinstance(each, Tensor))
    before = storage_bytes([*model.parameters(), *model.buffers(), *moments])
    result, changes = watch(lambda: work(step), device, _snapshot(case, folder, device))
    del result
    if folder is not None:
        _keep(case, changes, before, folder)
    columns: dict[str, float | int | str] = {"quantity": "peak", "before_mb": mb(before), "saved_mb": mb(changes.held)}
    found = [Measured(np.array([mb(before + changes.most)]), columns, unit="MB")]
    if phase == "forward_saved":
        config: Any = model.config
        found.append(_residual(step, blocks_of(model), residual_bytes(batch, context, config.hidden_size)))
    for each in largest(lambda: work(step), options.largest):
        told: dict[str, float | int | str] = {"quantity": "tensor", "times": each.times, "operator": each.operator}
        found.append(Measured(np.array([mb(each.nbytes)]), {**told, "stack": each.stack}, unit="MB"))
    return found


def _forward(step: ModelStep) -> Tensor:
    with torch.no_grad():
        return step.forward()


def _forward_saved(step: ModelStep) -> Tensor:
    return step.forward()


def _step(step: ModelStep) -> None:
    step.backward(step.forward())
    step.update()


WORK: dict[str, Callable[[ModelStep], Tensor | None]] = {
    "forward": _forward,
    "forward_saved": _forward_saved,
    "step": _step,
}
"""What each phase runs; what it returns is held until it was watched."""


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
    columns: dict[str, float | int | str] = {"quantity": "residual", "formula_mb": mb(formula)}
    return Measured(np.array([measured]), columns, abs(measured - mb(formula)), unit="MB")


def _snapshot(case: Case, folder: Path | None, device: torch.device) -> Path | None:
    if folder is None or device.type != "cuda":
        return None
    return folder / f"memory_{case.name.replace(' ', '_')}.pickle"


def _keep(case: Case, changes: Changes, before: int, folder: Path) -> None:
    """Append the timeline."""
    ms, nbytes = thinned(changes)
    held = {"ms": ms.tolist(), "mb": ((before + nbytes) / 1e6).tolist()}
    add_line(folder / "ranks" / TIMELINES_FILE, {**case.columns, "dtype": case.dtype, **held})
