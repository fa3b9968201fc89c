"""FlashAttention-2 in PyTorch and in Triton against softmax in float64: results, logsumexp, gradients, and memory."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from dynbench.bench.measuring import watch
from dynbench.errors import UsageError
from dynbench.kernels import Boundaries, FlashAttentionCompiled, FlashAttentionTorch, FlashAttentionTriton, flash_torch
from dynbench.kernels.flash_torch import Tiles, stacks_of, tiles_for

TRITON = [pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"), pytest.mark.slow]
KERNELS = [FlashAttentionTorch, FlashAttentionCompiled, pytest.param(FlashAttentionTriton, marks=TRITON)]
LENGTHS = [(1, 1), (16, 24), (33, 50), (50, 33), (49, 49)]
"""Queries and keys: one tile and several, whole or not."""
FEW = [(33, 50, True), (50, 33, True), (33, 50, False)]
CASES = [
    *((FlashAttentionTorch, *lengths, is_causal) for lengths in LENGTHS for is_causal in (False, True)),
    *((FlashAttentionCompiled, *case) for case in ((1, 1, True), *FEW)),
    *(pytest.param(FlashAttentionTriton, *case, marks=TRITON) for case in FEW),
]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few tokens are several tiles; of three rows of a batch, two go together and one is divided."""
    monkeypatch.setattr(flash_torch, "tiles_for", lambda *_: Tiles(queries=8, keys=24, stacked=2))
    monkeypatch.setattr(flash_torch, "_compiled", lambda: flash_torch.backward_whole)  # what is compiled, as it is


def states(leading: tuple[int, ...], queries: int, keys: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key and value, and the gradient of the result; d is no power of two."""
    drawn = torch.Generator().manual_seed(0)
    given = [torch.randn(*leading, n, 20, generator=drawn).to(dtype) for n in (queries, keys, keys, queries)]
    return [*(each.requires_grad_() for each in given[:3]), given[3]]


def by_softmax(given: list[Tensor], is_causal: bool, boundaries: Boundaries | None = None) -> list[Tensor]:
    """Result, logsumexp and the three gradients, in float64."""
    query, key, value = (each.detach().double().requires_grad_() for each in given[:3])
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if is_causal:
        seen = seen.tril()
    if boundaries is not None:
        seen &= boundaries.sample[:, None] == boundaries.sample
    scores = scores.masked_fill(~seen, -torch.inf)
    result = scores.softmax(-1) @ value
    gradients = torch.autograd.grad(result, (query, key, value), given[3].double())
    return [each.detach() for each in (result, scores.logsumexp(-1), *gradients)]


def agree(
    kernel: Any, given: list[Tensor], is_causal: bool, boundaries: Boundaries | None = None, most: float = 1e-5
) -> None:
    """Result, logsumexp and gradients differ from those by softmax by less than `most`, and are no NaN."""
    query = given[0]
    result = kernel.apply(*given[:3], is_causal, boundaries)
    saved = [each for each in result.grad_fn.saved_tensors if each.shape == query.shape[:-1]]
    assert len(saved) == 1 and result.dtype == query.dtype and result.shape == query.shape
    gradients = torch.autograd.grad(result, given[:3], given[3])
    assert [each.dtype for each in gradients] == [each.dtype for each in given[:3]]
    found = [each.double() for each in (result.detach(), saved[0], *gradients)]
    torch.testing.assert_close(found, by_softmax(given, is_causal, boundaries), rtol=0, atol=most)


@pytest.mark.parametrize(("kernel", "queries", "keys", "is_causal"), CASES)
def test_results_logsumexp_and_gradients(kernel, queries, keys, is_causal):
    agree(kernel, states((1,) if kernel is FlashAttentionTriton else (3,), queries, keys), is_causal)


@pytest.mark.parametrize("kernel", KERNELS)
def test_heads_and_half_precision(kernel):
    for dtype, most in ((torch.float16, 1e-2), (torch.bfloat16, 5e-2)):
        agree(kernel, states((2, 1), 33, 33, dtype), True, most=most)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_samples_of_a_packed_row_do_not_see_each_other(kernel, is_causal):
    boundaries = Boundaries((3, 1, 20, 8, 8, 13))
    agree(kernel, states((1, 2), boundaries.tokens, boundaries.tokens), is_causal, boundaries)


@pytest.mark.parametrize("kernel", KERNELS)
def test_states_of_any_strides(kernel):
    given = [each.detach().transpose(1, 2).contiguous().transpose(1, 2) for each in states((2,), 33, 33)]
    given = [*(each.requires_grad_() for each in given[:3]), given[3][:, :1].expand_as(given[0])]
    assert not any(each.is_contiguous() for each in given)
    agree(kernel, given, True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_far_apart_give_no_nan(kernel):
    given = states((1,), 49, 49)
    with torch.no_grad():
        given[0].mul_(100)
        given[0][:, ::2].mul_(-1)
    agree(kernel, given, True, most=1e-2)


def test_under_autocast_as_torchs_own():
    given = states((2,), 33, 33)
    with torch.autocast("cpu", torch.bfloat16):
        result = FlashAttentionTorch.apply(*given[:3], True)
        own = torch.nn.functional.scaled_dot_product_attention(*given[:3], is_causal=True)
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result, own, rtol=0, atol=5e-2)
    gradients = torch.autograd.grad(result, given[:3], given[3].bfloat16())
    assert all(each.dtype is torch.float32 and torch.isfinite(each).all() for each in gradients)


def peak(tokens: int) -> int:
    """Bytes that forward and backward hold at once."""
    given = states((1,), tokens, tokens)

    def both() -> object:
        return torch.autograd.grad(FlashAttentionTorch.apply(*given[:3], True), given[:3], given[3])

    return watch(both, torch.device("cpu"))[1].most


def test_memory_is_linear_in_the_tokens():
    few, more = peak(256), peak(1024)
    assert 0 < more < 4.2 * few, (few, more)


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (1, 2), (8, 2), (2, 4), (100, 64), (3, 100)])
@pytest.mark.parametrize("queries", [1, 300, 5000])
def test_stacks_have_every_query_once_and_a_tile_for_each_thread(batch, threads, queries, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    tiles, met = tiles_for(batch, torch.device("cpu")), []
    assert tiles.stacked == min(threads, 8 if batch < threads else threads)
    for some, stacks in stacks_of(batch, queries, tiles):
        met += range(batch)[some]
        assert stacks.rows * stacks.parts in (tiles.stacked, 8) and stacks.queries <= tiles.queries
        assert 4 * stacks.queries * stacks.keys <= 2**20 and stacks.keys % stacks.step == 0
        states = torch.randn(stacks.rows, queries, 2)
        assert torch.equal(stacks.join(stacks.divide(states), queries), states)
    assert met == list(range(batch))


@pytest.mark.parametrize("kernel", [FlashAttentionTorch, FlashAttentionTriton])
def test_what_does_not_belong_together_is_told(kernel):
    query, key, value, _ = states((2,), 5, 7)
    for said, *mistake in [
        ("do not belong together", query[0], key[0], value[0]),
        ("do not belong together", query, key, value[:, :6]),
        ("do not belong together", query, key, value.half()),
        ("do not belong together", query[:1], key, value),
        ("no tokens", query[:, :0], key, value),
        ("no tokens", query, key[:, :0], value[:, :0]),
        ("have 4 tokens together", query, key[:, :5], value[:, :5], False, Boundaries((4,))),
    ]:
        with pytest.raises(UsageError, match=said):
            kernel.apply(*mistake)


def test_without_triton_or_where_it_cannot_compute(monkeypatch):
    query, key, value, _ = states((1,), 5, 5)
    with pytest.raises(UsageError) as double:
        FlashAttentionTriton.apply(*(each.double() for each in (query, key, value)))
    assert find_spec("triton") is None or "float64" in double.value.message
    monkeypatch.setitem(sys.modules, "dynbench.kernels.flash_triton_launch", None)
    monkeypatch.delattr("dynbench.kernels.flash_triton_launch", raising=False)
    with pytest.raises(UsageError, match=r"needs Triton.*\nhint: .*pip install 'dynbench\[triton\]'"):
        FlashAttentionTriton.apply(query, key, value)


def test_tiles_are_tuned_for_lengths_of_their_own(monkeypatch):
    """A choice made at 128 tokens does not serve 65,536; nor does every length of a packed row tune anew."""
    launch = pytest.importorskip("dynbench.kernels.flash_triton_launch")
    if not launch.INTERPRETED:
        assert all("LENGTH" in kernel.keys for kernel in launch.TUNED.values())
    tuned_for = []

    class Kernel:
        def __getitem__(self, grid: object) -> Any:
            return lambda *given, **options: tuned_for.append(given[launch.kernels.forward.arg_names.index("LENGTH")])

    monkeypatch.setattr(launch, "TUNED", {"forward": Kernel()})
    for n in (5, 100, 128, 129, 300, 512):
        launch.forward(*(torch.zeros(1, n, 16) for _ in range(3)), False, None)
    assert tuned_for == [128, 128, 128, 256, 512, 512]
