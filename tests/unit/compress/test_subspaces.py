"""Compressors with collectives of their own: directions are found and refined, heavy elements found in sketches.

That ranks agree and nothing is lost is judged in `test_mean.py`, as for every compressor.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from compressors import OWN, compressor, on_threads
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dynbench.compress import GradiVeq, PowerSgd, Sketch
from dynbench.compress.compressing import Compressing
from dynbench.compress.powersgd import orthogonalise
from dynbench.compress.sketch import CountSketch
from dynbench.wire.segment import lay_out

SHAPES = {"weight": (30, 20), "kernel": (8, 3, 5), "bias": (20,), "row": (1, 50), "thin": (40, 2)}
SEGMENTS = lay_out(SHAPES.items())
SIZE = SEGMENTS[-1].offset + SEGMENTS[-1].numel
CPU = torch.device("cpu")


def gradient(rank: int, step: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + rank))


def alone(made: Compressing, flat: Tensor) -> Tensor:
    """The mean over a single rank, shape [n]."""
    (found,) = on_threads(1, lambda channel: made.mean(channel, mean := flat.clone(), SEGMENTS) or mean)
    return found


@pytest.mark.parametrize(
    ("form", "names"), [("powersgd", {"weight", "kernel"}), (OWN[1], {*SHAPES}), ("sketch ratio=0.1", {*SHAPES})]
)
def test_what_is_not_sent_whole(form: str, names: set[str]) -> None:
    made = compressor(form)
    alone(made, gradient(0, 0))
    assert {key for key in made.state_dict() if key.startswith("residual")} == {f"residual.{name}" for name in names}


def test_matrices_of_low_rank_come_back() -> None:
    made = PowerSgd(2, min_elements=0)
    flat = torch.zeros(SIZE)
    SEGMENTS[0].of(flat).view(30, 20).copy_(torch.randn(30, 2) @ torch.randn(2, 20))
    SEGMENTS[1].of(flat).view(8, 15).copy_(torch.randn(8, 1) @ torch.randn(1, 15))  # of a lower rank than columns
    found = alone(made, flat)
    torch.testing.assert_close(found, flat, rtol=1e-4, atol=1e-4)


def test_the_last_result_makes_the_next_better() -> None:
    """On one gradient again and again it becomes the best product of its rank."""
    made = PowerSgd(2, error_feedback=False, min_elements=0)
    flat = gradient(0, 0)
    weight = SEGMENTS[0].of(flat)
    best = float(torch.linalg.svdvals(weight)[2:].norm())
    errors = [float((SEGMENTS[0].of(alone(made, flat)) - weight).norm()) for _ in range(60)]
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best, rel=1e-2)


@given(n=st.integers(1, 40), r=st.integers(1, 6), twice=st.booleans(), seed=st.integers(0, 99))
def test_columns_become_orthonormal_or_nothing(n: int, r: int, twice: bool, seed: int) -> None:
    matrix = torch.randn(n, r, generator=torch.Generator().manual_seed(seed))
    if twice and r > 1:
        matrix[:, 1] = -3 * matrix[:, 0]
    before = matrix.clone()
    orthogonalise(matrix)
    found = matrix.T @ matrix
    left = matrix.any(0)
    torch.testing.assert_close(found, torch.diag(left.float()), rtol=1e-4, atol=1e-4)
    assert not (twice and r > 1 and bool(left[1]))
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


def test_directions_are_searched_as_often_as_said_and_counted() -> None:
    def work(channel: Any) -> list[tuple[object, int]]:
        made = GradiVeq(8, 3, refresh_every=3, start_step=1, min_elements=0)
        found = []
        for step in range(5):
            made.mean(channel, gradient(channel.rank, step), SEGMENTS)
            found.append((made.row()["extra_collectives"], len(channel.calls)))
            channel.calls.clear()
        return found

    assert on_threads(2, work)[0] == [(0, 1), (2, 3), (0, 1), (0, 1), (2, 3)]


def test_sketches_add_up_and_the_heavy_elements_are_found() -> None:
    random = torch.Generator().manual_seed(1)
    first, second = (0.01 * torch.randn(5000, generator=random) for _ in range(2))
    heavy = torch.randperm(5000, generator=random)[:20]
    first[heavy[:10]] += 5
    second[heavy[10:]] -= 5
    hashes = CountSketch(5000, 5, 500, 3, CPU)
    torch.testing.assert_close(hashes.write(first) + hashes.write(second), hashes.write(first + second))
    near = hashes.read(hashes.write(first) + hashes.write(second))
    assert set(near.abs().topk(20).indices.tolist()) == set(heavy.tolist())
    assert float((near[heavy] - (first + second)[heavy]).abs().max()) < 0.5


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_rows_spread_elements_each_its_own_way_and_their_median_is_read(rows: int) -> None:
    """Ten buckets get a tenth each and signs are even, to five deviations, and no two rows put the elements alike."""
    n = 1000
    hashes, sketch = CountSketch(n, rows, 10, 1, CPU), gradient(0, 0)[: 10 * rows].view(rows, 10)
    ones = torch.stack([hashes.write(one) for one in torch.eye(n)])
    signs, buckets = ones.sum(2), ones.abs().argmax(2)
    assert signs.abs().eq(1).all() and ones.abs().sum(2).eq(1).all()
    assert torch.equal(hashes.read(sketch), (ones * sketch).sum(2).median(1).values)
    seen = [(row > 0, 0.5) for row in signs.T] + [(row == place, 0.1) for row in buckets.T for place in range(10)]
    for found, share in seen:
        assert abs(float(found.float().mean()) - share) < 5 * (share * (1 - share) / n) ** 0.5
    assert all(float((one == other).float().mean()) < 0.5 for one, other in combinations(buckets.T, 2))


def test_what_is_found_is_exact() -> None:
    made = Sketch(0.05, rows=5, columns=0.2, min_elements=0, error_feedback=False)
    flat = torch.zeros(SIZE)
    flat[[3, 77, 603, 800]] = torch.tensor([2.0, -3.0, 4.0, -0.5])
    assert torch.equal(alone(made, flat), flat)
