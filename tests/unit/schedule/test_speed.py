"""Planning is quick beside the usual balancer; a ratio, with room, as machines differ."""

import heapq
import time
from collections.abc import Callable

import numpy as np
import pytest

from dynbench.schedule.policy import Problem, make_policy


def karmarkar_karp(weights: list[int], ranks: int) -> list[list[int]]:
    """Largest differencing in plain Python: the two states of widest spread are merged, heaviest with lightest."""
    heap = []
    for position, weight in enumerate(weights):
        heap.append((-weight, position, [(weight, [position])] + [(0, [])] * (ranks - 1)))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, tie, left = heapq.heappop(heap)
        _, _, right = heapq.heappop(heap)
        merged = [(a + b, x + y) for (a, x), (b, y) in zip(left, reversed(right), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], tie, merged))
    return [members for _, members in heap[0][2]]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Least wall time of one call."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


@pytest.mark.slow
def test_an_exact_partition_is_a_hundred_times_faster_than_karmarkar_karp():
    batch, workers = 1024, 64
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 0.8, batch).astype(int), 2, 512)
    exact = make_policy("partition", Problem(lengths, workers, batch, order="file"))
    parts = karmarkar_karp(lengths.tolist(), workers)
    assert sorted(position for part in parts for position in part) == list(range(batch))
    slow = seconds(lambda: karmarkar_karp(lengths.tolist(), workers), 2)
    quick = seconds(lambda: exact.deal([np.arange(batch)], 0), 50)
    print(f"B={batch}, G={workers}: {quick * 1e3:.3f} ms, Karmarkar-Karp {slow * 1e3:.1f} ms, {slow / quick:.0f} times")
    assert slow / quick > 100
