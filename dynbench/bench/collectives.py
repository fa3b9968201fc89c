"""All-reduce by size: what nccl-tests prints, quantiles over iterations, and latency with bandwidth by a linear fit.

`time`, `algbw` and `busbw` are as in nccl-tests (doc/PERFORMANCE.md there): algbw is the size over the time, and busbw
that times 2(n-1)/n, which for any number of ranks compares with the bandwidth of the slowest link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dynbench.bench.base import Benchmark, Case, Device, Measured, Row
from dynbench.plugins.benchmarks import CollectivesOptions
from dynbench.units import mb

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

MIB = 2**20
COMM_FILE = "comm_model.json"
"""What `launch.comm_model` reads; see `engine.comm_model.read_comm_file`."""
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DEVICES: dict[str, Device] = {"gloo": "cpu", "nccl": "cuda", "auto": "auto"}


class Collectives(Benchmark):
    """The all-reduce of `sizes_mib` over `processes`."""

    options: CollectivesOptions
    headers: ClassVar = {
        "size": "size (B)",
        "count": "count",
        "type": "type",
        "time": "time (us)",
        "algbw": "algbw (GB/s)",
        "busbw": "busbw (GB/s)",
        "#wrong": "#wrong",
        "p50": "p50 (ms)",
        "p95": "p95 (ms)",
        "p99": "p99 (ms)",
    }

    @property
    def processes(self) -> int:
        """As asked for."""
        return self.options.processes

    @property
    def device(self) -> Device:
        """That of the back end."""
        return DEVICES[self.options.backend]

    def cases(self) -> Sequence[Case]:
        """A size each, ascending."""
        dtype = self.options.dtype
        width = ELEMENT_BYTES[dtype]
        counts = sorted({max(1, round(size * MIB / width)) for size in self.options.sizes_mib})
        return [
            Case(
                f"all_reduce {count * width / MIB:g} MiB",
                [count],
                dtype,
                {"size": count * width, "count": count, "type": dtype},
            )
            for count in counts
        ]

    def measure(self, case: Case, context: RankContext) -> Measured:
        """The iterations of one size."""
        from dynbench.bench.allreduce import measure_allreduce

        return measure_allreduce(case, self.options.iterations, self.options.warmup, context)

    def summary(self, rows: Sequence[Row]) -> dict[str, object]:
        """Latency (alpha) and inverse bandwidth (beta) of the medians, by least squares; null for fewer than two."""
        points = _points(rows)
        return {"world_size": self.processes, "fit": fit_alpha_beta(points) if len(points) > 1 else None}

    def said(self, rows: Sequence[Row]) -> list[str]:
        """Wrong sums, latency and bandwidth, and who reads them."""
        points, wrong = _points(rows), [row.case for row in rows if row.columns.get("#wrong")]
        lines = [f"{case}: elements differ from the known sum; this all-reduce is broken" for case in wrong]
        if len(points) > 1:
            fit = fit_alpha_beta(points)
            alpha, beta, r2 = (fit[key] for key in ("alpha_ms", "beta_ms_per_mb", "r2"))
            quality = "" if r2 is None else f", R² {r2:.4f}"
            lines.append(f"medians of {len(points)} sizes: {alpha:.3g} ms + {beta:.3g} ms/MB{quality}")
            if isinstance(alpha, float) and alpha < 0:
                lines.append("a latency below zero: these sizes do not tell it, add smaller ones and iterations")
        return [*lines, f"{COMM_FILE} of the run is what launch.comm_model takes"] if points else lines

    def further_files(self, rows: Sequence[Row]) -> dict[str, object]:
        """The medians, for `launch.comm_model`."""
        from dynbench.engine.comm_model import FILE_SCHEMA_VERSION

        points = [{"megabytes": megabytes, "ms": ms} for megabytes, ms in _points(rows)]
        content = {"schema_version": FILE_SCHEMA_VERSION, "world_size": self.processes, "allreduce": points}
        return {COMM_FILE: content} if points else {}


def bus_factor(world_size: int) -> float:
    """What each rank of an all-reduce sends and receives, as a part of the buffer."""
    return 2 * (world_size - 1) / world_size


def _points(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Size in MB and median time in ms of what was measured."""
    return [(mb(int(row.columns["size"])), row.p50) for row in rows if row.p50 is not None]


def fit_alpha_beta(points: Sequence[tuple[float, float]]) -> dict[str, object]:
    """`ms = alpha + beta * MB` by least squares, the relative error at each size, and R² of more than two.

    Args:
        points: (MB, ms), at least two different sizes.
    """
    sizes, times = np.array(points, dtype=float).T
    beta, alpha = np.polyfit(sizes, times, 1)
    residuals = times - (alpha + beta * sizes)
    errors = zip(sizes, residuals / times, strict=True)
    spread = float(((times - times.mean()) ** 2).sum())
    return {
        "alpha_ms": float(alpha),
        "beta_ms_per_mb": float(beta),
        "r2": 1 - float((residuals**2).sum()) / spread if spread > 0 and len(points) > 2 else None,
        "errors": [{"megabytes": float(size), "relative": float(error)} for size, error in errors],
    }
