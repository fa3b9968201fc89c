"""A model trained on several ranks, with its memory counted at three moments, its steps timed and its bytes counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from dynbench.bench.allocations import watch
from dynbench.bench.base import Case, Measured
from dynbench.bench.memory_phases import storage_bytes
from dynbench.bench.model_step import LEARNING_RATE, ModelStep, build_model
from dynbench.bench.optimizer import MOMENTS, PARTS, STRATEGY
from dynbench.clock import clock_for
from dynbench.config.layers import load_config
from dynbench.engine.rank.exchange import max_over_ranks, wait_for_all
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.real import build_strategy, session
from dynbench.plugins.benchmarks import OptimizerOptions
from dynbench.sync.base import Strategy
from dynbench.units import mb

Columns = dict[str, float | int | str]


def measure_optimizer(case: Case, options: OptimizerOptions, context: RankContext) -> list[Measured]:
    """Memory at `MOMENTS` by `PARTS`, times of a step and of the optimizer's, bytes sent; maxima over ranks.

    Args:
        case: size, type and way.
        options: how often.
        context: this rank; every rank calls this.

    Raises:
        NotMeasured: parameters and what the optimizer keeps of them need more memory than there is.
    """
    config = load_config(None, (), {"sync.name": STRATEGY[str(case.columns["way"])]})
    with session(build_strategy(config, context.device)) as strategy:
        trained = _Trained(case, strategy, context.device)
        memory = np.stack([trained.memory_of(each) for each in (trained.make, trained.gradients, trained.step)])
        held = torch.from_numpy(memory)
        max_over_ranks(held)
        found = [
            Measured(np.array([mb(value)]), {"quantity": "memory", "moment": moment, "part": part}, unit="MB")
            for moment, values in zip(MOMENTS, held.tolist(), strict=True)
            for part, value in zip(PARTS, values, strict=True)
        ]
        times, sent = _timed(trained, options, context.device)
        for part, values in zip(("optimizer", "step"), times.T, strict=True):
            found.append(Measured(values, {"quantity": "time", "part": part}))
        formula = 2 * (context.world_size - 1) / context.world_size * storage_bytes_of_elements(trained.model)
        columns: Columns = {"quantity": "traffic", "formula_mb": mb(formula)}
        found.append(Measured(np.array([mb(sent)]), columns, abs(mb(sent) - mb(formula)), unit="MB"))
        return found


def storage_bytes_of_elements(model: nn.Module) -> int:
    """Bytes of all gradients in fp32, tied ones once."""
    return sum(4 * parameter.numel() for parameter in model.parameters())


@dataclass(eq=False)
class _Trained:
    """What is trained, made in a moment that is watched."""

    case: Case
    strategy: Strategy
    device: torch.device
    model: nn.Module = field(init=False)
    run: ModelStep = field(init=False)
    held: int = 0
    """Bytes of all that is watched."""

    def make(self) -> None:
        """The model, its strategy and its optimizer."""
        batch, context = self.case.shape
        self.model = build_model(str(self.case.columns["size"]), context, self.device)
        module = self.strategy.wrap(self.model, self.device)
        self.run = ModelStep(self.model, batch, context, self.case.dtype, module)
        self.run.optimizer = self.strategy.build_optimizer(module.parameters(), _adamw)

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
        peak, self.held = self.held + changes.most, self.held + changes.held
        optimized = [each for group in self.run.optimizer.param_groups for each in group["params"]]
        parameters = [*self.model.parameters(), *optimized]
        known = storage_bytes([*parameters, *self.model.buffers()])
        gradients = storage_bytes([*_gradients(parameters), *self.strategy.buffers()])
        states = self.run.optimizer.state.values()
        state = storage_bytes(each for values in states for each in values.values() if isinstance(each, Tensor))
        return np.array([known, gradients, state, self.held - known - gradients - state, self.held, peak], dtype=float)


def _adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=LEARNING_RATE)


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [each.grad for each in parameters if each.grad is not None]


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
