"""One GPU: its clock, its memory, its precisions, and FlashAttention-2 against softmax and torch's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynbench.clock import NS_PER_MS, Clock, CudaClock
from dynbench.engine.rank.memory import CudaMemory, memory_meter
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.engine.rank.timers import StepTimer
from dynbench.kernels import FlashAttentionTorch, FlashAttentionTriton

pytestmark = pytest.mark.gpu

CYCLES = 200_000_000
"""Of a kernel that only waits: about a tenth of a second."""


def test_events_and_the_host_agree_on_a_kernel(device: torch.device) -> None:
    host, gpu = Clock(), CudaClock(device)
    torch.cuda._sleep(1)
    gpu.synchronise()
    before, start = host.mark(), gpu.mark()
    torch.cuda._sleep(CYCLES)
    end = gpu.mark()
    gpu.synchronise()
    seen = host.elapsed_ms(before, host.mark())
    assert 0.9 * seen < gpu.elapsed_ms(start, end) <= 1.01 * seen


def test_a_mark_waits_for_nothing_and_waiting_for_it_leaves_other_streams_alone(device: torch.device) -> None:
    clock, other = CudaClock(device), torch.cuda.Stream(device)
    with torch.cuda.stream(other):
        torch.cuda._sleep(5 * CYCLES)
    torch.cuda._sleep(CYCLES)
    mark = clock.mark()
    assert not mark.query()
    clock.wait(mark)
    assert mark.query() and not other.query()
    clock.synchronise()
    assert other.query()


def test_phases_have_their_kernels_time_although_the_host_runs_ahead(device: torch.device) -> None:
    timer = StepTimer(device)
    with timer.device("forward"):
        torch.cuda._sleep(CYCLES)
    with timer.device("backward"):
        torch.cuda._sleep(2 * CYCLES)
    with timer.host("plan"):
        time.sleep(0.01)
    phases, step_ms = timer.end_step()
    assert phases["backward"] == pytest.approx(2 * phases["forward"], rel=0.05)
    assert phases["forward"] + phases["backward"] <= step_ms
    assert 10 <= phases["plan"] < phases["forward"]


def test_ready_is_a_moment_on_the_device(device: torch.device) -> None:
    timer, before = StepTimer(device), time.perf_counter_ns()
    with timer.backward():
        torch.cuda._sleep(CYCLES)
        timer.note_ready()
        torch.cuda._sleep(2 * CYCLES)
    phases, _ = timer.end_step()
    assert phases["sync"] == pytest.approx(2 * phases["backward"], rel=0.05)
    ((start, end),) = timer.synchronised.spans_ns
    assert end - start == pytest.approx(phases["sync"] * NS_PER_MS, rel=0.01)
    assert before < start < end < time.perf_counter_ns()


MB = 1_000_000


def test_a_peak_is_that_of_its_step(device: torch.device) -> None:
    meter = memory_meter(device)
    assert isinstance(meter, CudaMemory)
    meter.reset()  # other tests of this process have peaked
    held = meter.now().peak_mb
    peaks = []
    for megabytes in (64, 256, 16):
        meter.reset()
        torch.empty(megabytes * MB, dtype=torch.uint8, device=device)
        peaks.append(meter.now().peak_mb)
    assert [peak - held for peak in peaks] == pytest.approx([64, 256, 16], abs=3)


def test_reserved_is_what_the_allocator_keeps(device: torch.device) -> None:
    meter = CudaMemory(device)
    torch.empty(128 * MB, dtype=torch.uint8, device=device)
    meter.reset()
    assert meter.now().reserved_mb >= 128 > meter.now().peak_mb
    torch.cuda.empty_cache()
    assert meter.now().reserved_mb < 128


def stepped(device: torch.device, gradient: float, agree: Callable[[Tensor], object] | None) -> tuple[bool, bool]:
    """Whether the parameter moved, and whether the step counts as skipped."""
    parameter = torch.nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.AdamW([parameter], lr=1.0, fused=True)
    precision = Precision("fp16", device, agree)
    precision.backward((parameter * gradient).sum())
    precision.step(optimizer)
    return bool(parameter.item() != 0), precision.take_skipped()


def test_an_overflow_is_skipped(device: torch.device) -> None:
    assert stepped(device, float("inf"), None) == (False, True)
    assert stepped(device, 1.0, None) == (True, False)


def test_all_skip_what_one_has_to(device: torch.device) -> None:
    asked: list[torch.device] = []

    def another_overflowed(found: Tensor) -> None:
        asked.append(found.device)
        found.fill_(1.0)

    assert stepped(device, 1.0, another_overflowed) == (False, True)
    assert asked == [device]


def test_a_forward_pass_is_in_half_precision(device: torch.device) -> None:
    x = torch.ones(2, 2, device=device)
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        with Precision(name, device).autocast():
            assert (x @ x).dtype is dtype


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
