"""FlashAttention-2 (Dao 2023, arXiv:2307.08691) in Triton: what `flash_torch.py` computes, a kernel for each pass.

Triton is optional: this module imports without it, and says so in one line when the class is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynbench.errors import UsageError
from dynbench.kernels.flash_torch import prepared
from dynbench.kernels.packed_attention import Boundaries

if TYPE_CHECKING:
    from types import ModuleType


TYPES = (torch.float32, torch.float16, torch.bfloat16)


class FlashAttentionTriton(torch.autograd.Function):
    """`FlashAttentionTriton.apply(query, key, value, is_causal=False, boundaries=None)`, as `FlashAttentionTorch`.

    On NVIDIA GPUs, in float32, float16 or bfloat16, summed in float32. With `TRITON_INTERPRET=1` in the environment
    before Python starts, also on the CPU: slowly, for tests.

    Raises:
        UsageError: there is no Triton, or it cannot compute on this device or in this type; or as there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        boundaries: Boundaries | None = None,
    ) -> Tensor:
        """A program for each tile of queries and each row of the batch."""
        states = tuple(each.contiguous() for each in prepared(query, key, value, boundaries))
        result, lse = _kernels(states[0]).forward(*states, is_causal, boundaries)
        result, lse = result.view(query.shape), lse.view(query.shape[:-1])
        ctx.save_for_backward(*states, result, lse)
        ctx.is_causal, ctx.boundaries = is_causal, boundaries
        ctx.given = [(each.shape, each.dtype) for each in (query, key, value)]
        return cast(Tensor, result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Two passes by recomputation, over tiles of queries and over tiles of keys; nothing is added atomically."""
        *states, result, lse = ctx.saved_tensors
        more = [each.flatten(0, -3).contiguous() for each in (result, gradients[0])]
        found = _kernels(result).backward(*states, *more, lse.flatten(0, -2), ctx.is_causal, ctx.boundaries)
        return (
            *(each.view(shape).to(dtype) for each, (shape, dtype) in zip(found, ctx.given, strict=True)),
            None,
            None,
        )


def _kernels(states: Tensor) -> ModuleType:
    """The module with the kernels, which needs Triton.

    Raises:
        UsageError: it cannot be had, or cannot compute this.
    """
    try:
        from dynbench.kernels import flash_triton_launch as kernels
    except ImportError as error:
        raise UsageError(
            f"FlashAttentionTriton needs Triton, which cannot be imported: {error}",
            "pip install 'dynbench[triton]', or take FlashAttentionTorch.",
        ) from error
    if states.dtype not in TYPES:
        raise UsageError(
            f"FlashAttentionTriton does not compute in {states.dtype}",
            "Give float32, float16 or bfloat16, or take FlashAttentionTorch.",
        )
    if states.device.type != "cuda" and not kernels.INTERPRETED:
        raise UsageError(
            f"FlashAttentionTriton does not compute on {states.device}",
            "Move them to a GPU, take FlashAttentionTorch, or set TRITON_INTERPRET=1 before Python starts (slow).",
        )
    return kernels
