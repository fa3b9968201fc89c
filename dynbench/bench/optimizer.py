"""AdamW with and without divided state: memory at three moments by what it is for, time per step, bytes sent.

`adamw` keeps all moments on every rank, with the gradients' buckets all-reduced (strategy `bucketed`); `zero1` is the
strategy of that name. ZeRO stage 1 as published (Rajbhandari et al., SC 2020) reduce-scatters gradients and all-gathers
parameters, which sends what one all-reduce does: 2 (N-1)/N of the model per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dynbench.bench.base import Benchmark, Case, Device, Measured, Row
from dynbench.bench.transformer import DTYPES
from dynbench.plugins.benchmarks import OptimizerOptions

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

STRATEGY = {"adamw": "bucketed", "zero1": "zero1"}
MOMENTS = ("init", "before", "after")
"""After the model and the optimizer were made, before and after the optimizer's second step."""
PARTS = ("parameters", "gradients", "optimizer", "rest", "total", "peak")
"""What memory is for: gradients with the buckets that they are sent in; the rest is activations, the batch,
scratch of collectives, and buckets that hold no gradient yet; the peak is that since the moment before."""
NAMES = {
    "state": "optimizer state",
    "total": "all before the step",
    "peak": "peak until then",
    "step_time": "step",
    "sent": "bytes sent",
}
"""What is compared, in words."""
NOTHING_SAVED = (
    "zero1 saves no memory here: its buckets and the scratch of its collectives (gradients and the rest) take more "
    "than the state that it is spared"
)


class OptimizerState(Benchmark):
    """Both ways at every size."""

    options: OptimizerOptions
    headers: ClassVar = {
        "size": "size",
        "way": "optimizer",
        "quantity": "quantity",
        "moment": "moment",
        "part": "part",
        "p50": "p50",
        "unit": "unit",
        "sd": "sd",
        "formula_mb": "by formula (MB)",
    }

    @property
    def processes(self) -> int:
        """As asked for."""
        return self.options.ranks

    @property
    def device(self) -> Device:
        """As asked for."""
        chosen: Device = self.options.device
        return chosen

    @property
    def timeout_s(self) -> int:
        """As asked for."""
        return self.options.timeout_s

    def cases(self) -> Sequence[Case]:
        """Both ways of a size, then the next."""
        return [self._case(size, precision, way) for size in self.options.sizes for precision in self.options.precisions
                for way in STRATEGY]  # fmt: skip

    def _case(self, size: str, precision: str, way: str) -> Case:
        options, dtype = self.options, DTYPES[precision]
        columns: dict[str, float | int | str] = {"size": size, "context": options.context, "way": way}
        columns |= {"batch": options.local_batch, "processes": options.ranks}
        return Case(f"{size} {dtype} {way}", [options.local_batch, options.context], dtype, columns)

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """Memory at every moment, then times, then bytes sent."""
        from dynbench.bench.optimizer_step import measure_optimizer

        return measure_optimizer(case, self.options, context)

    def summary(self, rows: Sequence[Row]) -> dict[str, object]:
        """What `zero1` takes of `adamw`, by model: memory of the state, in all and at most, time, bytes sent."""
        wanted = {
            "state": ("memory", "after", "optimizer"),
            "total": ("memory", "before", "total"),
            "peak": ("memory", "before", "peak"),
            "step_time": ("time", None, "step"),
            "sent": ("traffic", None, None),
        }
        ratios: dict[str, dict[str, float]] = {}
        for name, (quantity, moment, part) in wanted.items():
            found = {
                (row.case.rpartition(" ")[0], row.columns["way"]): row.p50
                for row in rows
                if row.p50 is not None and row.columns.get("quantity") == quantity
                if row.columns.get("moment") == moment and row.columns.get("part") == part
            }
            for (model, way), value in found.items():
                if way == "zero1" and (plain := found.get((model, "adamw"))):
                    ratios.setdefault(model, {})[name] = value / plain
        return {"zero1_of_adamw": ratios}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same in lines, and where dividing the state saves no memory."""
        ratios = self.summary(rows)["zero1_of_adamw"]
        assert isinstance(ratios, dict)
        lines = []
        for model, of_model in ratios.items():
            listed = ", ".join(f"{NAMES[name]} {ratio:.3g}" for name, ratio in of_model.items())
            lines.append(f"{model}: zero1 over adamw on {self.processes} ranks: {listed}")
            if min(of_model.get("total", 0), of_model.get("peak", 0)) > 1:
                lines.append(f"{model}: {NOTHING_SAVED}")
        return lines
