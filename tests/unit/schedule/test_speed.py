"""Planning takes few operations, and is quick beside the usual balancer: a ratio, with room, as machines differ."""

import heapq
import math
from collections.abc import Callable
from functools import partial
from timeit import repeat

import numpy as np
import pytest
from plan_rules import problem_of

from dynbench.schedule import balancing, partition_search
from dynbench.schedule.policy import Problem, make_policy

BATCH, WORKERS = 1024, 64


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


def large(layout: str) -> Problem:
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 0.8, BATCH).astype(int), 2, 512)
    return problem_of(lengths, WORKERS, layout=layout)


def dealing(problem: Problem) -> Callable[[], object]:
    return partial(make_policy("partition", problem).deal, [np.arange(BATCH)], 0)


def test_an_exact_partition_takes_as_many_sweeps_as_halvings_of_its_range(monkeypatch):
    sweeps, reaches_end = [], partition_search._reaches_end

    class Counted(list):
        def __getitem__(self, position):
            sweeps[-1] += 1
            return super().__getitem__(position)

    def counted(cells, *arguments):
        sweeps.append(0)
        return reaches_end(Counted(cells), *arguments)

    monkeypatch.setattr(partition_search, "_reaches_end", counted)
    problem = large("padded")
    dealing(problem)()
    assert 0 < len(sweeps) <= math.log2(problem.lengths.sum())
    assert max(sweeps) <= WORKERS, "a sweep looks at one sample of each rank"


def test_packed_rows_take_few_rounds_of_exchanges(monkeypatch):
    rounds, exchange = [], balancing._Table.exchange
    monkeypatch.setattr(
        balancing._Table, "exchange", lambda table, shift: rounds.append(shift) or exchange(table, shift)
    )
    dealing(large("packed"))()
    assert len(rounds) <= 16


@pytest.mark.clock
@pytest.mark.parametrize(("layout", "times"), [("padded", 100), ("packed", 10)])
def test_a_plan_is_so_many_times_faster_than_karmarkar_karp(layout, times):
    problem = large(layout)
    lengths = problem.lengths.tolist()
    assert sorted(position for part in karmarkar_karp(lengths, WORKERS) for position in part) == list(range(BATCH))
    slow = min(repeat(lambda: karmarkar_karp(lengths, WORKERS), number=1, repeat=2))
    quick = min(repeat(dealing(problem), number=1, repeat=50))
    print(f"{layout}, B={BATCH}, G={WORKERS}: {quick * 1e3:.3f} ms, Karmarkar-Karp {slow * 1e3:.1f} ms")
    assert slow / quick > times
