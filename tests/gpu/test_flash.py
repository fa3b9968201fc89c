"""FlashAttention-2 on a GPU: against softmax in float64, and its time beside torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynbench.kernels import FlashAttentionTorch, FlashAttentionTriton

pytestmark = pytest.mark.gpu


def states(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    drawn = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(shape, device="cuda", dtype=dtype, generator=drawn).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("kernel", [FlashAttentionTorch, FlashAttentionTriton])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 1e-1)])
def test_against_softmax(kernel: Any, dtype: torch.dtype, limit: float, is_causal: bool) -> None:
    given = states((2, 3, 333, 64), dtype)
    exact = [each.detach().double().requires_grad_() for each in given]
    right = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=is_causal)
    result = kernel.apply(*given, is_causal)
    gradient = torch.randn_like(result)
    found = torch.autograd.grad(result, given, gradient)
    expected = torch.autograd.grad(right, exact, gradient.double())
    for a, b in zip((result, *found), (right, *expected), strict=True):
        assert float((a - b).detach().abs().max()) < limit


def test_a_product_takes_about_as_long_as_in_torchs_flash_back_end() -> None:
    """Backward in two passes, without atomic additions, makes scores and their gradients twice: 7 products for 5."""
    given = states((1, 16, 16384, 128), torch.bfloat16)

    def milliseconds(kernel: Any) -> float:
        times = []
        for _ in range(8):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = kernel()
            torch.autograd.grad(result, given, result)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return sorted(times)[2]

    ours = milliseconds(lambda: FlashAttentionTriton.apply(*given, True)) / (2 + 7)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        own = milliseconds(lambda: torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)) / (2 + 5)
    assert own / ours >= 0.9, (own, ours)
