"""Time of a language model's step by phase: its size, context, type and compilation, and what warm-up leaves out.

Phases are those of one loop, forward (with the activations that backward needs), backward, the step of AdamW, and all
three. The first case is a fresh process's: its rows tell the same series of iterations with fewer of the first left
out, which is what warm-up is for. Models are causal_lm's, attention torch's own; bf16 is autocast over fp32 weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from dynbench.bench.base import Case, Measured, OnOneDevice, Row
from dynbench.plugins.benchmarks import TransformerOptions

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
WAYS = {"eager": 0, "compiled": 1}


class Transformer(OnOneDevice):
    """The phases of a step of every model."""

    options: TransformerOptions
    headers: ClassVar = {
        "size": "size",
        "context": "context",
        "dtype": "type",
        "compiled": "compiled",
        "warmup": "warm-up",
        "phase": "phase",
        "mean": "mean (ms)",
        "sd": "sd (ms)",
        "p50": "p50 (ms)",
        "tokens_per_s": "tokens/s",
        "achieved_flop_per_s": "FLOP/s",
        "mfu": "MFU",
    }

    def cases(self) -> Sequence[Case]:
        """Every model: sizes and contexts as given, of each the types, eager before compiled."""
        options = self.options
        shapes = product(options.sizes, sorted(set(options.contexts)), options.precisions, options.execution)
        return [self._case(*shape) for shape in shapes]

    def _case(self, size: str, context: int, precision: str, way: str) -> Case:
        dtype = DTYPES[precision]
        columns: dict[str, float | int | str] = {"size": size, "context": context, "batch": self.options.local_batch}
        columns["compiled"] = WAYS[way]
        return Case(f"{size} {context} {dtype} {way}", [self.options.local_batch, context], dtype, columns)

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """The phases of one model; of the first, also with fewer iterations left out."""
        from dynbench.bench.transformer_phases import measure_phases

        options = self.options
        earlier = options.warmups if case.name == self.cases()[0].name else ()
        return measure_phases(case, options.iterations, sorted({*earlier, options.warmup}), context.device)

    def summary(self, rows: Sequence[Row]) -> dict[str, object]:
        """Mean time of a step over that of the eager one and of the fp32 one, and what warm-up changes."""
        steps = {_key(row): row.mean for row in rows if row.mean and row.columns["phase"] == "step" and self._warm(row)}
        of_eager, of_float32 = {}, {}
        for (size, context, dtype, compiled), mean in steps.items():
            name = f"{size} {context} {dtype}"
            if compiled and (eager := steps.get((size, context, dtype, 0))):
                of_eager[name] = mean / eager
            if not compiled and dtype != "float32" and (full := steps.get((size, context, "float32", 0))):
                of_float32[name] = mean / full
        warmups = {
            str(row.columns["warmup"]): {"mean_ms": row.mean, "sd_ms": row.sd}
            for row in rows
            if row.columns.get("phase") == "step" and row.case == rows[0].case
        }
        return {"compiled_of_eager": of_eager, "half_of_float32": of_float32, "step_by_warmup": warmups}

    def _warm(self, row: Row) -> bool:
        return row.columns["warmup"] == self.options.warmup

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same in lines."""
        found = self.summary(rows)
        lines = []
        for key, said in (("compiled_of_eager", "the eager one"), ("half_of_float32", "float32")):
            ratios = found[key]
            assert isinstance(ratios, dict)
            lines += [f"a step of {name} takes {ratio:.3g} of the time of {said}" for name, ratio in ratios.items()]
        by_warmup = found["step_by_warmup"]
        assert isinstance(by_warmup, dict)
        if len(by_warmup) > 1:
            each = (f"{count}: {at['mean_ms']:.3g} ± {at['sd_ms'] or 0:.2g} ms" for count, at in by_warmup.items())
            lines.append(f"step of {rows[0].case} by warm-up iterations: {', '.join(each)}")
        return lines


def _key(row: Row) -> tuple[str, int, str, int]:
    columns = row.columns
    return str(columns["size"]), int(columns["context"]), row.dtype, int(columns["compiled"])
