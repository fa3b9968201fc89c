"""One trial: a real training step at the worst case, with everything that holds memory during training."""

from __future__ import annotations

import gc
import statistics
import time

import torch
import torch.distributed as dist

from dynbench.config.schema import Config
from dynbench.engine.failure import is_out_of_memory
from dynbench.engine.rank.memory import memory_meter
from dynbench.engine.rank.precision import Precision
from dynbench.engine.rank.replica import build_optimizer
from dynbench.probe.limits import limit_process
from dynbench.probe.shapes import shaped_batch
from dynbench.units import mb
from dynbench.workloads.base import Workload

STEPS_PER_TRIAL = 2
"""The first step allocates the optimizer's state only after its activations are gone; the second holds both."""


class TrialStep:
    """Model, optimizer, gradient buckets and a way to run one step of any shape.

    Args:
        config: resolved settings.
        workload: where the model and the loss come from.
        device: where to run.
        limit_bytes: most memory of this process that may be resident in a trial; None where the device has a limit of
            its own, or nothing is tried.
    """

    def __init__(
        self, config: Config, workload: Workload, device: torch.device, limit_bytes: int | None = None
    ) -> None:
        self.device = device
        self._limit_bytes = limit_bytes
        self._workload = workload
        self._model = workload.build_model(config.train.seed).to(device).train()
        self._optimizer = build_optimizer(self._model.parameters(), config.train)
        self._precision = Precision(config.train.precision, device)
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        # DistributedDataParallel keeps one flat copy of the gradients in its buckets.
        self.buckets = torch.zeros(sum(p.numel() for p in parameters), device=device)
        self.memory = memory_meter(device)

    def step(self, n: int, length: int, most: bool = False) -> None:
        """Forward, backward and optimizer step of one micro-batch (see `shaped`); ends with the device idle."""
        batch = shaped_batch(self._workload, n, length, self.device, most)
        with self._precision.autocast():
            loss = self._workload.loss(self._model, batch.inputs)
        self._precision.backward(loss / batch.weight)
        self._precision.step(self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def fits(self, n: int, length: int) -> tuple[bool, float | None]:
        """Whether two steps pass within the limit, and their peak in MB where they were not stopped.

        Recovery is outside the `except` clause: inside it the traceback keeps the failed step's tensors alive.
        """
        if self._limit_bytes is not None:
            limit_process(self._limit_bytes)
        self.memory.reset()
        failed = False
        try:
            for _ in range(STEPS_PER_TRIAL):
                self.step(n, length, most=True)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            failed = True
        if failed:
            self.recover()
            return False, None
        peak = self.memory.peak_mb()
        return self._limit_bytes is None or peak <= mb(self._limit_bytes), peak

    def recover(self) -> None:
        """Drop what a failed step left behind."""
        self._optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def timed(self, n: int, length: int, repeats: int) -> list[float]:
        """Milliseconds of `repeats` steps after one to warm up."""
        self.step(n, length)
        return [self._ms(n, length) for _ in range(repeats)]

    def _ms(self, n: int, length: int) -> float:
        start = time.perf_counter()
        self.step(n, length)
        return (time.perf_counter() - start) * 1e3

    def reduce(self, repeats: int) -> float:
        """Median milliseconds of an all-reduce of the gradient buckets."""
        times = []
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(self.buckets)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)
