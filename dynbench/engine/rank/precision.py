"""Mixed precision: autocast, and the loss scaler that fp16 needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.optim import Optimizer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Of the precisions that autocast knows; fp32 is none of them."""


def refuse_tf32() -> None:
    """fp32 is fp32 from here on: cuDNN convolves in TF32 by default, and cuBLAS where the environment asks for it.

    By the older names, of which torch warns: those who read them refuse flags set by the newer ones alone.
    """
    with warnings.catch_warnings(action="ignore"):
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False


class Precision:
    """Runs forward passes and optimizer steps in one precision.

    Args:
        name: fp32, bf16 or fp16; the first refuses TF32 in this process.
        device: where the model is.
        agree: takes the maximum over ranks, in place, of whether gradients overflowed; None where every rank finds
            the same, because all hold the same gradients.
        clip: scales an optimizer's unscaled gradients down; None leaves them.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        agree: Callable[[Tensor], object] | None = None,
        clip: Callable[[Optimizer], None] | None = None,
    ) -> None:
        self._agree = agree
        self._clip = clip
        self._device = device
        self._dtype = DTYPES.get(name)
        if self._dtype is None:
            refuse_tf32()
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")
        self._scale = self._scaler.get_scale()

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def backward(self, loss: Tensor) -> None:
        """Backward pass of the scaled loss."""
        torch.autograd.backward(self._scaler.scale(loss))

    def step(self, optimizer: Optimizer) -> None:
        """One optimizer step on unscaled gradients, or none where they overflowed, on any rank that has to agree."""
        if self._scaler.is_enabled() and (self._agree is not None or self._clip is not None):
            self._scaler.unscale_(optimizer)
            if self._agree is not None:
                self._agree_on_overflow(optimizer, self._agree)
        if self._clip is not None:
            self._clip(optimizer)
        self._scaler.step(optimizer)
        self._scaler.update()

    def _agree_on_overflow(self, optimizer: Optimizer, agree: Callable[[Tensor], object]) -> None:
        """One flag on every rank, also where `optimizer` holds no gradient, as of a shard that nothing has used."""
        flags = self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if not flags:
            flags[self._device] = torch.zeros((), device=self._device)
        for found in flags.values():
            agree(found)

    def take_skipped(self) -> bool:
        """Whether the last step was skipped (the scale went down); waits for the device, so ask after the step."""
        before, self._scale = self._scale, self._scaler.get_scale()
        return self._scale < before
