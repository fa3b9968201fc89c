"""How long a step takes under each strategy, of one language model on two gloo ranks, against DistributedDataParallel.

    python tests/speed/strategies.py ddp,naive,bucketed,overlap --seconds 210 --out steps.jsonl    nothing beside it

GPT-2 of 62.4 M parameters (width 640, 6 layers, 10 heads, tied), AdamW, 8 sequences of 128 random tokens per rank, one
thread per rank. The strategies take turns step by step in one pair of processes, in an order that moves on by one and
turns round; a step is as long as its slower rank. Printed: the geometric mean ratio to the first strategy, round by
round, and its 95 % interval over rounds. One pair of processes is one launch: the interval does not hold what changes
between launches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import GPT2Config, GPT2LMHeadModel

from dynbench.analysis.stats import paired_ratio
from dynbench.config.layers import load_config
from dynbench.engine.rank.loop import build_strategy
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.sync.base import Strategy

SEQUENCES, LENGTH, VOCABULARY, RANKS = 8, 128, 50257, 2
CPU = torch.device("cpu")


def build(name: str) -> tuple[Strategy, torch.optim.Optimizer]:
    """A replica of the model under a strategy; a collective."""
    torch.manual_seed(0)
    shape = {"n_embd": 640, "n_layer": 6, "n_head": 10, "n_positions": 1024, "vocab_size": VOCABULARY}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**shape, **dropout, use_cache=False)).train()
    strategy = build_strategy(load_config(None, [f"sync.name={name}"]), CPU)
    parameters = strategy.wrap(model, CPU).parameters()
    return strategy, strategy.build_optimizer(parameters, lambda held: torch.optim.AdamW(held, lr=1e-4, fused=True))


def step_s(strategy: Strategy, optimizer: torch.optim.Optimizer, precision: Precision) -> float:
    """Seconds of one step on the slower rank, from a barrier on."""
    ids = torch.randint(VOCABULARY, (SEQUENCES, LENGTH))
    dist.barrier()
    start = time.perf_counter()
    strategy.module(input_ids=ids, labels=ids).loss.backward()
    strategy.finish()
    strategy.step(optimizer, precision)
    optimizer.zero_grad()
    strategy.drain()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def rank_main(rank: int, meeting: str, names: Sequence[str], seconds: float, out: Path | None) -> None:
    """Take turns for so many seconds, then say what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    built = {name: (*build(name), Precision("fp32", CPU)) for name in names}
    for arm in built.values():
        step_s(*arm)  # not kept: buffers are made
    times: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    go = torch.ones(1)
    rounds = 0
    while go:
        order = list(names)[:: 1 if rounds % 2 == 0 else -1]
        first = rounds // 2 % len(order)
        for name in order[first:] + order[:first]:
            times[name].append(step_s(*built[name]))
        rounds += 1
        go = torch.tensor([float(time.perf_counter() - start < seconds)])
        dist.all_reduce(go, op=dist.ReduceOp.MIN)
    if rank == 0:
        say(times)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                for name, taken in times.items():
                    line = {"strategy": name, "baseline": names[0], "step_s": [round(one, 4) for one in taken]}
                    file.write(json.dumps(line) + "\n")
    dist.barrier()


def say(times: dict[str, list[float]]) -> None:
    """A line for each strategy."""
    baseline = next(iter(times))
    for name, taken in times.items():
        middle, low, high, *_ = paired_ratio(taken, times[baseline])
        print(
            f"{name:12} {middle:.3f} of {baseline} [{low:.3f}, {high:.3f}]  {statistics.mean(taken):.2f} s a step, "
            f"{len(taken)} steps"
        )


def main() -> None:
    """Two ranks, each a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", type=lambda text: text.split(","), help="with commas between; the baseline first")
    parser.add_argument("--seconds", type=float, default=210)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (f"{folder}/meeting", given.strategies, given.seconds, given.out), nprocs=RANKS, join=True)


if __name__ == "__main__":
    main()
