"""Gradients as products of narrow matrices: near in few steps, equal on all ranks, and nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressors import compressor, on_threads, same_bits
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dynbench.compress import PowerSgd
from dynbench.compress.powersgd import orthogonalise
from dynbench.wire.segment import lay_out

SHAPES = {"weight": (30, 20), "kernel": (8, 3, 5), "bias": (20,), "row": (1, 50), "thin": (40, 2)}
SEGMENTS = lay_out(SHAPES.items())
SIZE = SEGMENTS[-1].offset + SEGMENTS[-1].numel


def gradient(rank: int, step: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + rank))


def averaged(made: PowerSgd, channel: Any, flat: Tensor, shards: bool = False) -> Tensor:
    flat = flat.clone()
    if not shards:
        made.mean(channel, flat, SEGMENTS)
        return flat
    flat = torch.nn.functional.pad(flat, (0, -SIZE % channel.world_size))
    shard = torch.empty(len(flat) // channel.world_size)
    made.mean_shard(channel, flat, SEGMENTS, shard)
    found = torch.zeros_like(flat)
    found.view(channel.world_size, -1)[channel.rank] = shard
    return found[:SIZE]


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_nothing_is_lost_and_all_ranks_get_the_same(ranks: int, shards: bool) -> None:
    steps = 6

    def work(channel: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
        made = compressor("powersgd")
        return [averaged(made, channel, gradient(channel.rank, s), shards) for s in range(steps)], made.state_dict()

    results = on_threads(ranks, work)
    sent = sum(sum(means) for means, _ in (results if shards else results[:1])) * ranks
    given = sum(gradient(rank, step) for rank in range(ranks) for step in range(steps))
    for segment in SEGMENTS:
        left = sum(state.get(f"residual.{segment.name}", torch.zeros(segment.numel)) for _, state in results)
        found = segment.of(sent).reshape(-1) + left
        torch.testing.assert_close(found, segment.of(given).reshape(-1), rtol=1e-4, atol=1e-4)
    if not shards:
        for step in range(steps):
            assert same_bits([means[step] for means, _ in results])
    assert {key for key in results[0][1] if key.startswith("residual")} == {"residual.weight", "residual.kernel"}


def test_matrices_of_low_rank_come_back() -> None:
    made = PowerSgd(2, min_elements=0)
    flat = torch.zeros(SIZE)
    weight, kernel = (
        SEGMENTS[place].of(flat).view(SHAPES[name][0], -1) for place, name in enumerate(["weight", "kernel"])
    )
    weight.copy_(torch.randn(30, 2) @ torch.randn(2, 20))
    kernel.copy_(torch.randn(8, 1) @ torch.randn(1, 15))  # of a lower rank than there are columns
    (found,) = on_threads(1, lambda channel: averaged(made, channel, flat))
    torch.testing.assert_close(found, flat, rtol=1e-4, atol=1e-4)


def test_the_last_result_makes_the_next_better() -> None:
    """On one gradient again and again it becomes the best product of its rank."""
    made = PowerSgd(2, error_feedback=False, min_elements=0)
    flat = gradient(0, 0)
    weight = SEGMENTS[0].of(flat)
    best = float(torch.linalg.svdvals(weight)[2:].norm())
    errors = []
    for _ in range(60):
        (found,) = on_threads(1, lambda channel: averaged(made, channel, flat))
        errors.append(float((SEGMENTS[0].of(found) - weight).norm()))
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best, rel=1e-2)


@pytest.mark.parametrize("bad", [torch.zeros(SIZE), torch.full((SIZE,), torch.nan), torch.full((SIZE,), torch.inf)])
def test_a_gradient_of_nothing_or_of_no_numbers_is_survived(bad: Tensor) -> None:
    made = PowerSgd(2, min_elements=0)
    (first,) = on_threads(1, lambda channel: averaged(made, channel, bad))
    assert torch.equal(first, bad) if not bad.any() else not SEGMENTS[0].of(first).isfinite().all()
    (second,) = on_threads(1, lambda channel: averaged(made, channel, gradient(0, 1)))
    assert second.isfinite().all() and SEGMENTS[0].of(second).any()


@given(n=st.integers(1, 40), r=st.integers(1, 6), twice=st.booleans(), seed=st.integers(0, 99))
def test_columns_become_orthonormal_or_nothing(n: int, r: int, twice: bool, seed: int) -> None:
    matrix = torch.randn(n, r, generator=torch.Generator().manual_seed(seed))
    if twice and r > 1:
        matrix[:, 1] = -3 * matrix[:, 0]
    before = matrix.clone()
    orthogonalise(matrix)
    found = matrix.T @ matrix
    kept = matrix.any(0)
    torch.testing.assert_close(found, torch.diag(kept.float()), rtol=1e-4, atol=1e-4)
    assert not (twice and r > 1 and bool(kept[1]))
    torch.testing.assert_close(matrix @ (matrix.T @ before), before, rtol=1e-3, atol=1e-3)


def test_a_saved_state_goes_on_as_if_nothing_had_been() -> None:
    made, again = compressor("powersgd"), compressor("powersgd")
    on_threads(1, lambda channel: [averaged(made, channel, gradient(0, step)) for step in range(3)])
    again.load_state_dict({name: kept.clone() for name, kept in made.state_dict().items()})
    (a,), (b,) = (on_threads(1, lambda c, each=each: averaged(each, c, gradient(0, 3))) for each in (made, again))
    assert same_bits([a, b])
