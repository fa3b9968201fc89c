"""Whether `bench collectives` takes as long as a loop written by hand: two gloo ranks, taking turns.

    python tests/speed/collectives.py --mib 10 --rounds 30         nothing beside it

One round is a case of the benchmark and a loop of as many all-reduces of the same size, in an order that turns round.
Printed: the geometric mean ratio of their medians and its 95 % interval over rounds; it should be within 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from strategies import ratio

from dynbench.bench.collectives import MIB, Collectives
from dynbench.engine.rank.rank_process import RankContext
from dynbench.plugins.benchmarks import CollectivesOptions

RANKS, ITERATIONS = 2, 20


def by_hand(mib: float) -> float:
    """Median ms of an all-reduce on the slower rank."""
    buffer, times = torch.ones(round(mib * MIB / 4)), []
    for index in range(5 + ITERATIONS):
        buffer.fill_(1)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(buffer)
        took = torch.tensor([1e3 * (time.perf_counter() - start)], dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if index >= 5:
            times.append(float(took))
    return statistics.median(times)


def rank_main(rank: int, meeting: str, mib: float, rounds: int) -> None:
    """Take turns, then say what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    benchmark = Collectives(
        CollectivesOptions(operations=("all_reduce",), sizes_mib=(mib,), backend=("gloo",), iterations=ITERATIONS)
    )
    (case,) = benchmark.cases()
    context = RankContext(rank, rank, RANKS, torch.device("cpu"))
    arms = {
        "bench": lambda: statistics.median(benchmark.measure(case, context).values.tolist()),
        "by hand": lambda: by_hand(mib),
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    for index in range(rounds):
        for name in list(arms)[:: 1 if index % 2 == 0 else -1]:
            found[name].append(arms[name]())
    if rank == 0:
        low, middle, high = ratio(found["bench"], found["by hand"])
        print(f"bench over by hand: {middle:.3f} [{low:.3f}, {high:.3f}], {rounds} rounds of {mib:g} MiB")
    dist.barrier()


def main() -> None:
    """Two ranks, each a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (f"{folder}/meeting", given.mib, given.rounds), nprocs=RANKS, join=True)


if __name__ == "__main__":
    main()
