"""What one rank of a benchmark runs: `python -m dynbench.bench.rank RUN_FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import torch

from dynbench.bench.base import Benchmark, Case, Measured, NotMeasured, Row
from dynbench.bench.record import add_rows, cases_done, read_benchmark
from dynbench.config.schema import Config
from dynbench.engine.rank.exchange import broadcast_integers
from dynbench.engine.rank.launched import run_as_rank
from dynbench.engine.rank.rank_process import RankContext, StopFlag
from dynbench.runs.run import Run


def work(runs: Sequence[Run], configs: Sequence[Config], context: RankContext, stop: StopFlag) -> None:
    """Measure what has no row yet, up to a case that takes another number of ranks.

    A signal that asks to stop ends this process at once.
    """
    (run,) = runs
    benchmark = read_benchmark(run)
    done = np.array([cases_done(run)]) if context.is_first else None
    left = benchmark.cases()[int(broadcast_integers(done, 1)[0]) :]
    for case in takewhile(lambda case: benchmark.ranks_of(case) == context.world_size, left):
        context.position.at(f"measuring {case.name}")
        rows = rows_of(benchmark, case, context)
        if context.is_first:
            add_rows(run, rows)


def rows_of(benchmark: Benchmark, case: Case, context: RankContext) -> list[Row]:
    """The rows of a case, measured now, or why it cannot be."""
    device = benchmark.device_of(case, context)
    if "torch._dynamo" in sys.modules:  # torch compiles a function eight times, and then runs it as it is
        torch.compiler.reset()
    try:
        measured = benchmark.measure(case, context)
    except NotMeasured as reason:
        about = (case.name, case.shape, case.dtype, device.type)
        return [Row(*about, status=reason.status, reason=str(reason), columns=case.columns)]
    return [measured_row(case, each, device) for each in ([measured] if isinstance(measured, Measured) else measured)]


def measured_row(case: Case, measured: Measured, device: torch.device) -> Row:
    """The row of a case that was measured on this device."""
    values, on_gpu = measured.values, device.type == "cuda"
    p20, p50, p80 = map(float, np.percentile(values, (20, 50, 80)))
    return Row(
        case=case.name,
        shape=case.shape,
        dtype=case.dtype,
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        unit=measured.unit,
        n=len(values),
        mean=float(values.mean()),
        sd=float(values.std(ddof=1)) if len(values) > 1 else None,
        p20=p20,
        p50=p50,
        p80=p80,
        reference_error=measured.reference_error,
        versions=f"torch {torch.__version__}" + (f", CUDA {torch.version.cuda}" if on_gpu else ""),
        columns={**case.columns, **measured.columns},
    )


if __name__ == "__main__":
    run_as_rank(work)
