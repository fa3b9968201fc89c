"""Heavy elements found in sketches: equal on all ranks, and nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressors import compressor, on_threads, same_bits
from torch import Tensor

from dynbench.compress import Sketch
from dynbench.compress.sketch import CountSketch, _median
from dynbench.wire.segment import lay_out

SEGMENTS = lay_out([("weight", (40, 30)), ("bias", (7,)), ("other", (300,))])
SIZE = 1507
CPU = torch.device("cpu")


def gradient(rank: int, step: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + rank)) ** 3


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_nothing_is_lost_and_all_ranks_get_the_same(ranks: int, shards: bool) -> None:
    steps = 5

    def work(channel: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
        made, found = compressor("sketch ratio=0.1"), []
        made.min_elements = 10
        for step in range(steps):
            flat = torch.nn.functional.pad(gradient(channel.rank, step), (0, -SIZE % channel.world_size))
            if shards:
                shard = torch.empty(len(flat) // channel.world_size)
                made.mean_shard(channel, flat, SEGMENTS, shard)
                flat = torch.zeros_like(flat)
                flat.view(channel.world_size, -1)[channel.rank] = shard
            else:
                made.mean(channel, flat, SEGMENTS)
            found.append(flat[:SIZE])
        return found, made.state_dict()

    results = on_threads(ranks, work)
    sent = sum(sum(means) for means, _ in (results if shards else results[:1])) * ranks
    given = sum(gradient(rank, step) for rank in range(ranks) for step in range(steps))
    for segment in SEGMENTS:
        left = sum(state.get(f"residual.{segment.name}", torch.zeros(segment.numel)) for _, state in results)
        wanted = segment.of(given).reshape(-1)
        torch.testing.assert_close(segment.of(sent).reshape(-1) + left, wanted, rtol=1e-3, atol=1e-3)
    if not shards:
        assert all(same_bits([means[step] for means, _ in results]) for step in range(steps))


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


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6])
def test_the_median_is_torch_s(rows: int) -> None:
    values = torch.randn(rows, 50, generator=torch.Generator().manual_seed(rows))
    assert torch.equal(_median([*values]), values.median(0).values)


def test_hashes_are_spread_and_differ_from_row_to_row() -> None:
    """Ten buckets get a tenth each, signs are even, and no two rows put the elements alike."""
    ones = torch.ones(20_000)
    hashes = CountSketch(len(ones), 3, 10, 1, CPU)
    for row, signs, buckets in hashes._rows(torch.zeros(3, 10), 0, len(ones)):
        assert float((torch.bincount(buckets, minlength=10) - 2000).abs().max()) < 250
        assert set(signs.unique().tolist()) == {-1.0, 1.0} and abs(float(signs.sum())) < 900
        assert len(row) == 10
    first, second, third = (buckets for _, _, buckets in hashes._rows(torch.zeros(3, 10), 0, len(ones)))
    for a, b in ((first, second), (second, third), (first, third)):
        assert abs(float((a == b).float().mean()) - 0.1) < 0.03


def test_what_is_found_is_exact() -> None:
    made = Sketch(0.05, rows=5, columns=0.2, min_elements=0, error_feedback=False)
    flat = torch.zeros(SIZE)
    flat[[3, 77, 1203, 1400]] = torch.tensor([2.0, -3.0, 4.0, -0.5])
    (found,) = on_threads(1, lambda channel: made.mean(channel, given := flat.clone(), SEGMENTS) or given)
    assert torch.equal(found, flat)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so_and_does_not_come_back(value: float) -> None:
    made = Sketch(0.05, min_elements=10)
    found = []
    for step in range(2):
        flat = gradient(0, step)
        if step == 0:
            flat[5] = value
        on_threads(1, lambda channel, flat=flat: made.mean(channel, flat, SEGMENTS))
        found.append(bool(flat.isfinite().all()))
    assert found == [False, True]
