"""AdamW with and without divided state: memory at three moments by what it is for, time per step, bytes sent.

`adamw` keeps all moments on every rank, with the gradients' buckets all-reduced (strategy `bucketed`); `sharded` is the
same with a `ShardedOptimizer` around it, whose ranks broadcast the parameters that they stepped; `zero1` is the
strategy of that name. ZeRO stage 1 as published (Rajbhandari et al., SC 2020) reduce-scatters gradients and all-gathers
parameters, which sends what one all-reduce does: 2 (N-1)/N of the model per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW

from dynbench.bench.base import DTYPES, Benchmark, Case, Columns, Measured, Row, ratios, titled
from dynbench.bench.measuring import watch
from dynbench.bench.memory import moments_of, storage_bytes
from dynbench.clock import clock_for
from dynbench.config.layers import load_config
from dynbench.engine.rank.exchange import max_over_ranks, wait_for_all
from dynbench.plugins.benchmarks import OptimizerOptions
from dynbench.sync import ShardedOptimizer
from dynbench.units import mb

if TYPE_CHECKING:
    from dynbench.bench.model_step import ModelStep
    from dynbench.engine.rank.rank_process import RankContext
    from dynbench.sync.base import Strategy

STRATEGY = {"adamw": "bucketed", "sharded": "bucketed", "zero1": "zero1"}
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
    "saves no memory here: its buckets and the scratch of its collectives (gradients and the rest) take more than the "
    "state that it is spared"
)


class OptimizerState(Benchmark):
    """Every way at every size."""

    options: OptimizerOptions
    headers: ClassVar = titled(
        *("size", "way", "quantity", "moment", "part", "p50", "unit", "sd", "formula_mb"),
        way="optimizer",
        p50="p50",
        sd="sd",
        formula_mb="by formula (MB)",
    )

    @property
    def processes(self) -> int:
        """By the option `ranks`."""
        return self.options.ranks

    def cases(self) -> Sequence[Case]:
        """The ways of a size, then the next."""
        options = self.options
        shared: Columns = {"context": options.context, "batch": options.local_batch, "processes": options.ranks}
        dtypes = [DTYPES[precision] for precision in options.precisions]
        return [
            Case(
                f"{size} {dtype} {way}",
                [options.local_batch, options.context],
                dtype,
                {"size": size, **shared, "way": way},
            )
            for size, dtype, way in product(options.sizes, dtypes, STRATEGY)
        ]

    def measure(self, case: Case, context: RankContext) -> Sequence[Measured]:
        """Memory at every moment, then times, then bytes sent."""
        from dynbench.bench.model_step import parameters_of
        from dynbench.engine.rank.loop import build_strategy, session

        config = load_config(None, (), {"sync.name": STRATEGY[str(case.columns["way"])]})
        with session(build_strategy(config, context.device)) as strategy:
            trained = _Trained(case, strategy, context.device)
            memory = np.stack([trained.memory_of(each) for each in (trained.make, trained.gradients, trained.step)])
            largest = torch.from_numpy(memory)
            max_over_ranks(largest)
            found = [
                Measured(np.array([mb(value)]), {"quantity": "memory", "moment": moment, "part": part}, unit="MB")
                for moment, values in zip(MOMENTS, largest.tolist(), strict=True)
                for part, value in zip(PARTS, values, strict=True)
            ]
            times, sent = _timed(trained, self.options, context.device)
            for part, values in zip(("optimizer", "step"), times.T, strict=True):
                found.append(Measured(values, {"quantity": "time", "part": part}))
            formula = 2 * (context.world_size - 1) / context.world_size * (4 * parameters_of(trained.model))
            columns: Columns = {"quantity": "traffic", "formula_mb": mb(formula)}
            found.append(Measured(np.array([mb(sent)]), columns, abs(mb(sent) - mb(formula)), unit="MB"))
            return found

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """What the others take of `adamw`, by model and way: memory of the state, in all and at most, time, bytes."""
        wanted = {
            "state": ("memory", "after", "optimizer"),
            "total": ("memory", "before", "total"),
            "peak": ("memory", "before", "peak"),
            "step_time": ("time", None, "step"),
            "sent": ("traffic", None, None),
        }
        found: dict[str, dict[str, float]] = {}
        for name, where in wanted.items():
            chosen = [row for row in rows if tuple(map(row.columns.get, ("quantity", "moment", "part"))) == where]
            of_adamw = ratios(
                chosen, lambda row: row.case.rpartition(" ")[0], lambda row: str(row.columns["way"]), "adamw"
            )
            for model, by_way in of_adamw.items():
                for way in by_way.keys() - {"adamw"}:
                    found.setdefault(f"{model} {way}", {})[name] = by_way[way]
        return {"of_adamw": dict(sorted(found.items()))}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same in lines, and where dividing the state saves no memory."""
        lines = []
        for name, found in self.summary(rows)["of_adamw"].items():
            listed = ", ".join(f"{NAMES[what]} {ratio:.3g}" for what, ratio in found.items())
            lines.append(f"{name} over adamw on {self.processes} ranks: {listed}")
            if min(found.get("total", 0), found.get("peak", 0)) > 1:
                lines.append(f"{name} {NOTHING_SAVED}")
        return lines


@dataclass(eq=False)
class _Trained:
    """What is trained, made in a moment that is watched."""

    case: Case
    strategy: Strategy
    device: torch.device
    model: nn.Module = field(init=False)
    run: ModelStep = field(init=False)
    total: int = 0
    """Bytes of all that is watched."""

    def make(self) -> None:
        """The model, its strategy and its optimizer."""
        from dynbench.bench.model_step import LEARNING_RATE, ModelStep, build_model

        batch, context = self.case.shape
        self.model = build_model(str(self.case.columns["size"]), context, self.device)
        module = self.strategy.wrap(self.model, self.device)
        self.run = ModelStep(self.model, batch, context, self.case.dtype, module)
        sharded = partial(ShardedOptimizer, optimizer_cls=AdamW, wire=self.strategy.wire)
        factory = sharded if self.case.columns["way"] == "sharded" else AdamW
        self.run.optimizer = self.strategy.build_optimizer(module.parameters(), partial(factory, lr=LEARNING_RATE))

    def gradients(self) -> None:
        """A first step, which makes the moments; then forward and backward of the second."""
        self.forward_backward()
        self.step()
        self.run.optimizer.zero_grad()
        self.forward_backward()

    def forward_backward(self) -> None:
        """Gradients, averaged over ranks."""
        self.run.backward(self.run.forward())
        self.strategy.finish()

    def step(self) -> None:
        """The optimizer's, and what travels after it."""
        self.strategy.step(self.run.optimizer, self.run.precision)
        self.strategy.drain()

    def memory_of(self, work: Callable[[], None]) -> np.ndarray:
        """Bytes by `PARTS` once this was done, shape [len(PARTS)]."""
        _, changes = watch(work, self.device)
        peak, self.total = self.total + changes.most, self.total + changes.after
        optimized = [each for group in self.run.optimizer.param_groups for each in group["params"]]
        parameters = [*self.model.parameters(), *optimized]
        known = storage_bytes([*parameters, *self.model.buffers()])
        gradients = storage_bytes([*(p.grad for p in parameters if p.grad is not None), *self.strategy.buffers()])
        state = storage_bytes(moments_of(self.run.optimizer))
        return np.array(
            [known, gradients, state, self.total - known - gradients - state, self.total, peak], dtype=float
        )


def _timed(trained: _Trained, options: OptimizerOptions, device: torch.device) -> tuple[np.ndarray, int]:
    """Milliseconds of the optimizer's step and of the whole one, shape [iterations, 2], and bytes sent in the last."""
    clock, strategy = clock_for(device), trained.strategy
    times = torch.zeros(options.warmup + options.iterations, 2, dtype=torch.float64)
    for index in range(len(times)):
        trained.run.optimizer.zero_grad()
        strategy.wire.take()
        clock.synchronise()
        wait_for_all()
        start = clock.mark()
        trained.forward_backward()
        ready = clock.mark()
        trained.step()
        end = clock.mark()
        clock.synchronise()
        times[index] = torch.tensor([clock.elapsed_ms(ready, end), clock.elapsed_ms(start, end)])
    max_over_ranks(times)
    return times[options.warmup :].numpy(), strategy.wire.take().bytes_wire
