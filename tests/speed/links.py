"""Whether steps over links of other speeds last as long as predicted: two gloo ranks, links emulated.

    python tests/speed/links.py topk --seconds 60 --out links.jsonl        nothing beside it

One model of 33.6 M elements, flat gradients, one thread per rank; arms take turns step by step in one pair of
processes, in an order that moves on by one and turns round. First the arms with and without the compressor, for its
break-even speed; then these two, which give the predictions, beside both over links of half, once and twice that speed.
Times are medians over rounds of the slower rank's step. Printed: predicted and measured, and how far they are apart. A
link has to be slower than the machine itself moves bytes, as one that is faster changes nothing here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from dynbench.analysis.links import faster_gbps, predicted_ms
from dynbench.config.layers import load_config
from dynbench.engine.rank.loop import build_strategy
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.sync.base import Strategy

CPU, RANKS, WIDTH, LAYERS, ROWS = torch.device("cpu"), 2, 2048, 8, 64


@dataclass
class Arm:
    """What takes turns.

    Args:
        compress: compressor.
        gbps: of the emulated link; None for none.
    """

    compress: str
    gbps: float | None = None
    step_ms: list[float] = field(default_factory=list)
    rows: list[Mapping[str, float]] = field(default_factory=list)

    def build(self) -> None:
        """A replica; a collective."""
        torch.manual_seed(0)
        link = [] if self.gbps is None else [f"launch.link_gbps={self.gbps}"]
        config = load_config(None, ["sync.name=flat", f"compress.name={self.compress}", *link])
        self.strategy: Strategy = build_strategy(config, CPU)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        parameters = self.strategy.wrap(nn.Sequential(*layers).train(), CPU).parameters()
        self.optimizer = self.strategy.build_optimizer(parameters, lambda held: torch.optim.SGD(held, lr=1e-6))
        self.step()
        self.step_ms.clear()
        self.rows.clear()

    def step(self) -> None:
        """One, from a barrier on."""
        dist.barrier()
        self.strategy.wire.take()
        start = time.perf_counter()
        self.strategy.module(torch.ones(ROWS, WIDTH)).square().mean().backward()
        self.strategy.finish()
        self.strategy.step(self.optimizer, Precision("fp32", CPU))
        self.optimizer.zero_grad()
        took = torch.tensor([1e3 * (time.perf_counter() - start)], dtype=torch.float64)
        traffic, coded = self.strategy.wire.take(), self.strategy.wire.row()
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        coding = sum(float(str(coded.get(name, 0.0))) for name in ("compress_ms", "decompress_ms"))
        self.step_ms.append(float(took))
        self.rows.append(
            {"ms": traffic.busy_ms, "sent": traffic.gradient_wire, "raw": traffic.gradient_raw, "coding": coding}
        )

    def summary(self) -> dict[str, object]:
        """As of a run."""
        median = {name: statistics.median(row[name] for row in self.rows) for name in self.rows[0]}
        return {
            "step_time_ms": {"mean": statistics.median(self.step_ms)},
            "comm_transfer_ms": {"mean": median["ms"]},
            "bytes_wire": {"mean": median["sent"]},
            "gradient_bytes_raw": {"mean": median["raw"]},
            "compression_ratio": median["raw"] / median["sent"],
            "compression": {"compress_ms": median["coding"]},
        }


def take_turns(arms: Sequence[Arm], seconds: float) -> None:
    """Every arm as often; only what is measured here is kept."""
    for arm in arms:
        arm.build()
    start, go, rounds = time.perf_counter(), torch.ones(1), 0
    while go:
        order = list(arms)[:: 1 if rounds % 2 == 0 else -1]
        first = rounds // 2 % len(order)
        for arm in order[first:] + order[:first]:
            arm.step()
        rounds += 1
        go = torch.tensor([float(time.perf_counter() - start < seconds)])
        dist.all_reduce(go, op=dist.ReduceOp.MIN)


def rank_main(rank: int, meeting: str, compress: str, seconds: float, out: Path | None) -> None:
    """Measure, predict, measure over links, say what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    plain = [Arm("none"), Arm(compress)]
    take_turns(plain, seconds / 3)
    spans = faster_gbps([plain[1].summary()], [plain[0].summary()]) or [(0.0, 0.0)]
    together = [spans[0][1]]
    dist.broadcast_object_list(together)
    even = together[0]
    assert even, f"{compress} is faster over all links, or over none"
    linked = [Arm(arm.compress, even * times) for times in (0.5, 1.0, 2.0) for arm in plain]
    take_turns([*plain, *linked], seconds)
    told = {arm.compress: arm.summary() for arm in plain}
    for arm in linked if rank == 0 else ():
        assert arm.gbps is not None
        expected, found = predicted_ms([told[arm.compress]], arm.gbps), statistics.median(arm.step_ms)
        assert expected is not None
        line = {
            "compress": arm.compress,
            "emulated_gbps": round(arm.gbps, 3),
            "break_even_gbps": round(even, 3),
            "without_link_ms": round(float(str(told[arm.compress]["step_time_ms"]["mean"])), 1),  # type: ignore[index]
            "predicted_ms": round(expected, 1),
            "measured_ms": round(found, 1),
            "apart": round(expected / found - 1, 4),
            "steps": len(arm.step_ms),
        }
        print(json.dumps(line))
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    dist.barrier()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compress", help="name of the compressor")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            rank_main,
            (f"{folder}/meeting", asked.compress, asked.seconds, asked.out),
            nprocs=RANKS,
            start_method="fork",
        )


if __name__ == "__main__":
    main()
