"""Gradients within few directions: near in few steps, equal on all ranks, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compressors import OWN, compressor, on_threads, same_bits
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dynbench.compress import GradiVeq, PowerSgd
from dynbench.compress.compressing import Compressing
from dynbench.compress.powersgd import orthogonalise
from dynbench.wire.segment import lay_out

SHAPES = {"weight": (30, 20), "kernel": (8, 3, 5), "bias": (20,), "row": (1, 50), "thin": (40, 2)}
SEGMENTS = lay_out(SHAPES.items())
SIZE = SEGMENTS[-1].offset + SEGMENTS[-1].numel
COMPRESSED = {"powersgd": {"weight", "kernel"}, OWN[1]: {*SHAPES}}
"""By form, what is not sent whole."""


def gradient(rank: int, step: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + rank))


def averaged(made: Compressing, channel: Any, flat: Tensor, shards: bool = False) -> Tensor:
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
@pytest.mark.parametrize("form", COMPRESSED)
def test_nothing_is_lost_and_all_ranks_get_the_same(form: str, ranks: int, shards: bool) -> None:
    judge(lambda: compressor(form), form, ranks, shards)


def judge(make: Callable[[], Compressing], form: str, ranks: int, shards: bool) -> None:
    """That nothing is lost, and that all ranks have the same."""
    steps = 6

    def work(channel: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
        made = make()
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
    assert {key for key in results[0][1] if key.startswith("residual")} == {
        f"residual.{name}" for name in COMPRESSED[form]
    }


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


@pytest.mark.parametrize("form", COMPRESSED)
@pytest.mark.parametrize("bad", [torch.zeros(SIZE), torch.full((SIZE,), torch.nan), torch.full((SIZE,), torch.inf)])
def test_a_gradient_of_nothing_or_of_no_numbers_is_survived(form: str, bad: Tensor) -> None:
    made = compressor(form)
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


def along(size: int, columns: Tensor, seed: int) -> Tensor:
    """A parameter whose slices are all within the space of some columns."""
    parts = torch.randn(size // len(columns), columns.shape[1], generator=torch.Generator().manual_seed(seed))
    return (parts @ columns.T).view(-1)


def test_slices_within_the_space_come_back_and_few_steps_later_those_of_another() -> None:
    one, other = (torch.linalg.qr(torch.randn(8, 6)).Q.split(3, dim=1) for _ in range(2))
    [segment] = lay_out([("weight", (50, 16))])

    def work(channel: Any) -> list[float]:
        made, found = GradiVeq(8, 3, refresh_every=2, min_elements=0, error_feedback=False), []
        for step, space in enumerate([one[0], one[0], one[1], other[0], other[1]]):
            flat = along(800, space, 10 * step + channel.rank)
            wanted = (along(800, space, 10 * step) + along(800, space, 10 * step + 1)) / 2
            made.mean(channel, flat, [segment])
            found.append(float((flat - wanted).norm() / wanted.norm()))
        return found

    first, second = on_threads(2, work)
    assert first == second
    assert [error < 1e-4 for error in first] == [True, True, True, False, True]


def test_no_directions_hold_more_of_the_slices() -> None:
    """Of the ranks' slices together, as far as one basis for both goes."""
    made = GradiVeq(8, 3, min_elements=0, error_feedback=False)
    flat = gradient(0, 0)
    (found,) = on_threads(1, lambda channel: averaged(made, channel, flat))
    slices = SEGMENTS[0].of(flat).view(-1, 8)
    best = float(torch.linalg.svdvals(slices)[3:].norm())
    assert float((SEGMENTS[0].of(found) - SEGMENTS[0].of(flat)).norm()) == pytest.approx(best, rel=1e-4)


class KeepsItsOwn(GradiVeq):
    """Fault: every rank has directions of its own."""

    def _refresh(self, channel: Any, due: Any) -> None:
        for each in due:
            self._basis[each.part.name] = self._principal(each.slices.T @ each.slices, True)


def test_ranks_with_directions_of_their_own_are_caught() -> None:
    with pytest.raises(AssertionError):
        judge(lambda: KeepsItsOwn(8, 3, min_elements=0), OWN[1], 2, shards=False)


def test_directions_are_searched_as_often_as_said_and_counted() -> None:
    def work(channel: Any) -> list[tuple[object, int]]:
        made = GradiVeq(8, 3, refresh_every=3, start_step=1, min_elements=0)
        found = []
        for step in range(5):
            averaged(made, channel, gradient(channel.rank, step))
            found.append((made.row()["extra_collectives"], len(channel.calls)))
            channel.calls.clear()
        return found

    assert on_threads(2, work)[0] == [(0, 1), (2, 3), (0, 1), (0, 1), (2, 3)]
