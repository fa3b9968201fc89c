"""Memory of a language model by phase: forward only, forward with what backward needs, and a full step with AdamW.

Peaks are whole: parameters, what the optimizer keeps, and what the phase takes beside them. Beside the peaks stand the
residual stream between two layers, by formula and as measured, and the largest tensors with where they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from dynbench.bench.base import Case, Measured, OnOneDevice, Row
from dynbench.bench.transformer import DTYPES
from dynbench.plugins.benchmarks import MemoryOptions

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

PHASES = ("forward", "forward_saved", "step")
"""Without gradients; with the activations kept; forward, backward and the optimizer's step."""
TIMELINES_FILE = "timelines.jsonl"
"""In the run's folder of raw files; a line per case."""


class Memory(OnOneDevice):
    """Every phase of every model."""

    options: MemoryOptions
    headers: ClassVar = {
        "size": "size",
        "context": "context",
        "dtype": "type",
        "phase": "phase",
        "quantity": "quantity",
        "p50": "MB",
        "before_mb": "held before (MB)",
        "saved_mb": "held after (MB)",
        "reference_error": "formula is off by (MB)",
        "times": "times",
        "operator": "operator",
        "stack": "made in",
    }

    def cases(self) -> Sequence[Case]:
        """Every phase of every model, short contexts first."""
        options = self.options
        models = product(options.sizes, sorted(set(options.contexts)), options.precisions)
        return [self._case(*model, phase) for model in models for phase in PHASES]

    def _case(self, size: str, context: int, precision: str, phase: str) -> Case:
        dtype, batch = DTYPES[precision], self.options.local_batch
        columns: dict[str, float | int | str] = {"size": size, "context": context, "batch": batch, "phase": phase}
        return Case(f"{size} {context} {dtype} {phase}", [batch, context], dtype, columns)

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """The peak of one phase, and what else is told of it."""
        from dynbench.bench.memory_phases import measure_phase

        return measure_phase(case, self.options, context.device, self.folder)

    def summary(self, rows: Sequence[Row]) -> dict[str, object]:
        """The peak of each phase by model, MB."""
        peaks: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.columns.get("quantity") == "peak" and row.p50 is not None:
                model = row.case.removesuffix(f" {row.columns['phase']}")
                peaks.setdefault(model, {})[str(row.columns["phase"])] = row.p50
        return {"peak_mb": peaks}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """How phases and types compare, and whether the formula of the residual stream holds."""
        peaks = self.summary(rows)["peak_mb"]
        assert isinstance(peaks, dict)
        lines = []
        for model, of_phase in peaks.items():
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
