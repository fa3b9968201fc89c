"""How long FlashAttention-2 in PyTorch takes on this CPU beside torch's own attention, and its memory beside plain's.

    python tests/speed/flash.py --out flash.jsonl    nothing beside it

Forward and backward of float32 states, causal. The ways take turns in one process; a round's ratio is of medians over
its turns, and the best and the middle round are printed, so that a machine that did other things for a while is seen.
Torch's own gets a dimension of heads, without which it falls back to plain attention on CPUs. Memory is what is
allocated at once beside the states, summed from the profiler's events.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dynbench.bench.attention import Attend, way_of, with_memory

CPU = torch.device("cpu")
WAYS = ("sdpa", "flash_torch")


def states_of(batch: int, length: int, width: int) -> list[Tensor]:
    """Query, key and value, and the gradient of the result."""
    drawn = torch.Generator().manual_seed(0)
    *states, gradient = (torch.randn(batch, length, width, generator=drawn) for _ in range(4))
    return [*(each.requires_grad_() for each in states), gradient]


def step_ms(attend: Attend, states: list[Tensor]) -> float:
    """Milliseconds of forward and backward."""
    start = time.perf_counter()
    torch.autograd.grad(attend(*states[:3]), states[:3], states[3])
    return 1e3 * (time.perf_counter() - start)


def ratios(states: list[Tensor], rounds: int, turns: int) -> list[dict[str, float]]:
    """For each round the median time of each way, in ms."""
    ways = {way: way_of(way, True, CPU) for way in WAYS}
    for attend in ways.values():
        step_ms(attend, states)
    found = []
    for _ in range(rounds):
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(turns):
            for way in WAYS[:: 1 if turn % 2 else -1]:
                taken[way].append(step_ms(ways[way], states))
        found.append({way: statistics.median(each) for way, each in taken.items()})
    return found


def peak_bytes(way: str, states: list[Tensor]) -> int:
    """What forward and backward hold at once, beside the states."""
    forward: Callable[[], Tensor] = partial(way_of(way, True, CPU), *states[:3])
    return with_memory(forward, lambda result: torch.autograd.grad(result, states[:3], states[3]), CPU)[2]


def main() -> None:
    """Print a line for each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 8))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for batch in given.batches:
        states = states_of(batch, given.length, given.width)
        rounds = ratios(states, given.rounds, given.turns)
        of_sdpa = sorted(each["flash_torch"] / each["sdpa"] for each in rounds)
        memory = peak_bytes("flash_torch", states) / peak_bytes("plain", states)
        print(
            f"batch {batch}: {of_sdpa[0]:.3f} (best round), {statistics.median(of_sdpa):.3f} (middle) of torch's own "
            f"time, {min(each['flash_torch'] for each in rounds):.1f} ms; {memory:.3f} of plain attention's memory",
            flush=True,
        )
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as file:
                line = {"batch": batch, "length": given.length, "width": given.width, "median_ms": rounds}
                file.write(json.dumps({**line, "memory_of_plain": memory}) + "\n")


if __name__ == "__main__":
    main()
