"""Kernels that take boundaries, where there are any: of torch, or of flash-attention 2; on GPUs, in half precision."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from dynbench.kernels.packed_rows import Boundaries

HALF = (torch.float16, torch.bfloat16)
MOST_CHANNELS = 256
"""Of a head, that these kernels take."""
LEAST_CAPABILITY = 8
"""Compute capability from which they run (Ampere)."""
TORCH_MULTIPLE = 8
"""Of the channels of a head in torch's kernel; flash-attention pads others itself."""


class Kernel(Protocol):
    """Attention of every sample to itself."""

    __name__: str

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        boundaries: Boundaries,
        *,
        causal: bool,
        window: int | None,
        scale: float | None,
        dropout: float,
    ) -> Tensor:
        """Of states [T, (key) heads, channels] the result, [T, heads, channels]."""


def variable_length_kernel(query: Tensor, dropout: float) -> Kernel | None:
    """The kernel for such states, which autocast may have made half precision; None where there is none.

    Args:
        query: [T, heads, channels].
        dropout: of attention weights, which torch's kernel does not know.
    """
    if query.device.type != "cuda" or query.dtype not in HALF or query.shape[-1] > MOST_CHANNELS:
        return None
    if torch.cuda.get_device_capability(query.device)[0] < LEAST_CAPABILITY:
        return None
    if not dropout and query.shape[-1] % TORCH_MULTIPLE == 0 and _torch_has_one():
        return torch_kernel
    return flash_attention_2 if _flash_attention_is_there() else None


def torch_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Boundaries,
    *,
    causal: bool,
    window: int | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """`torch.nn.attention.varlen`, without dropout."""
    from torch.nn.attention.varlen import varlen_attn

    offsets, longest = boundaries.offsets, boundaries.longest
    attended = varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        offsets,
        offsets,
        longest,
        longest,
        scale=scale,
        window_size=sides(causal, window),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, Tensor), "nothing else is asked for"
    return attended


def flash_attention_2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Boundaries,
    *,
    causal: bool,
    window: int | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """`flash_attn_varlen_func` of the package flash-attn 2."""
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]  # where it is installed

    offsets, longest = boundaries.offsets, boundaries.longest
    attended: Tensor = flash_attn_varlen_func(
        *(query, key, value, offsets, offsets, longest, longest),
        dropout_p=dropout,
        softmax_scale=scale,
        causal=causal,
        window_size=sides(causal, window),
    )
    return attended


def sides(causal: bool, window: int | None) -> tuple[int, int]:
    """How many tokens before and after its own place a token sees; -1 for any."""
    reach = -1 if window is None else window - 1
    return reach, 0 if causal else reach


@cache
def _torch_has_one() -> bool:
    """Whether torch has the kernel, in the form that takes a window."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return {"window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)


@cache
def _flash_attention_is_there() -> bool:
    """Whether it is version 2: version 4 has a folder of this name alone, without a module in it."""
    found = find_spec("flash_attn")
    return found is not None and found.origin is not None
