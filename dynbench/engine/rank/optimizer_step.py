"""Around the optimizer's step: mixed precision and its loss scaler, gradient clipping, the learning rate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynbench.config.schema import Train
from dynbench.runs.records import CLIPPED, GRAD_NORM, Column

CLIP_COLUMNS: tuple[Column, ...] = (GRAD_NORM, CLIPPED)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Of the precisions that autocast knows; fp32 is none of them."""


class Clipper:
    """Clips by the norm of the whole gradient.

    Args:
        max_norm: `train.max_grad_norm`.
        norm: the norm over all parameters and shards, as `Strategy.gradient_norm`.
    """

    def __init__(self, max_norm: float, norm: Callable[[], Tensor]) -> None:
        self._max_norm = max_norm
        self._norm = norm
        self._last: Tensor | None = None

    def clip(self, optimizer: Optimizer) -> None:
        """Scale the unscaled gradients that `optimizer` holds; the device is not waited for."""
        self._last = self._norm().detach()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grads_with_norm_(parameters, self._max_norm, self._last)

    def row(self) -> dict[str, object]:
        """The columns of the step that ended, empty where this rank took no optimizer step; waits for the device."""
        last, self._last = self._last, None
        if last is None:
            return {GRAD_NORM.name: None, CLIPPED.name: None}
        norm = last.item()
        return {GRAD_NORM.name: norm, CLIPPED.name: int(norm > self._max_norm)}


def rate_factor(step: int, train: Train) -> float:
    """What part of `train.learning_rate` a step is taken with.

    Args:
        step: optimizer step, from 0, warm-up included.
        train: how it rises over `lr_warmup_steps`, and falls to 0 behind the last step.
    """
    if step < train.lr_warmup_steps:
        return (step + 1) / train.lr_warmup_steps
    if train.schedule == "constant":
        return 1.0
    done = (step - train.lr_warmup_steps) / (train.warmup_steps + train.steps - train.lr_warmup_steps)
    return 1 - done if train.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2


class LearningRate:
    """Sets the rate of an optimizer's parameters before each of its steps.

    Args:
        optimizer: with the full rate in its groups.
        train: the schedule.
    """

    def __init__(self, optimizer: Optimizer, train: Train) -> None:
        self._optimizer = optimizer
        self._train = train
        self._full = [float(group["lr"]) for group in optimizer.param_groups]
        self._step = 0

    def advance(self) -> None:
        """For the next step, skipped or not."""
        factor = rate_factor(self._step, self._train)
        for group, full in zip(self._optimizer.param_groups, self._full, strict=True):
            group["lr"] = factor * full
        self._step += 1


def refuse_tf32() -> None:
    """fp32 is fp32 from here on: cuDNN convolves in TF32 by default, and cuBLAS where the environment asks for it.

    By the older names, of which torch warns: those who read them refuse flags set by the newer ones alone.
    """
    with warnings.catch_warnings(action="ignore"):
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False


@dataclass(eq=False)
class Precision:
    """Runs forward passes and optimizer steps in one precision.

    Args:
        name: fp32, bf16 or fp16; the first refuses TF32 in this process.
        device: where the model is.
        agree: takes the maximum over ranks, in place, of whether gradients overflowed; None where every rank finds
            the same, because all hold the same gradients.
        clip: scales an optimizer's unscaled gradients down; None leaves them.
    """

    name: str
    device: torch.device
    agree: Callable[[Tensor], object] | None = None
    clip: Callable[[Optimizer], None] | None = None

    def __post_init__(self) -> None:
        self._dtype = DTYPES.get(self.name)
        if self._dtype is None:
            refuse_tf32()
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")
        self._scale = self._scaler.get_scale()

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Backward pass of the scaled loss."""
        torch.autograd.backward(self._scaler.scale(loss))

    def step(self, optimizer: Optimizer) -> None:
        """One optimizer step on unscaled gradients, or none where they overflowed, on any rank that has to agree."""
        if self._scaler.is_enabled() and (self.agree is not None or self.clip is not None):
            self._scaler.unscale_(optimizer)
            if self.agree is not None:
                self._agree_on_overflow(optimizer, self.agree)
        if self.clip is not None:
            self.clip(optimizer)
        self._scaler.step(optimizer)
        self._scaler.update()

    def _agree_on_overflow(self, optimizer: Optimizer, agree: Callable[[Tensor], object]) -> None:
        """One flag on every rank, also where `optimizer` holds no gradient, as of a shard that nothing has used."""
        flags = self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if not flags:
            flags[self.device] = torch.zeros((), device=self.device)
        for found in flags.values():
            agree(found)

    def take_skipped(self) -> bool:
        """Whether the last step was skipped (the scale went down); waits for the device, so ask after the step."""
        before, self._scale = self._scale, self._scaler.get_scale()
        return self._scale < before
