"""Synthetic runs that compress: what their ranks wrote, declared as real ones declare it, and evaluations."""

from __future__ import annotations

from collections.abc import Callable

from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.compress.compressing import COMPRESS_COLUMNS, ERROR_COLUMNS
from dynbench.runs.atomic import write_text
from dynbench.runs.columns import COMM_COLUMNS, write_columns
from dynbench.runs.row_writer import Call, CallWriter
from dynbench.runs.run import Run

SENT = {"none": 1.0, "fp8": 0.25}
"""By compressor, what is sent of a gradient of a MB."""
PERPLEXITY = {"none": (12.0, 8.0), "fp8": (13.0, 8.1)}
STEPS = (19, 39)
"""After which there is an evaluation."""


def compressed_run(make_run: Callable[..., Run], name: str, seed: int = 0, measured: bool = True) -> Run:
    """A run under a compressor, whose error was measured or not."""
    share = SENT[name]
    extra = {"comm_ms": 4 * share, "comm_sum_ms": 4 * share, "hidden_comm_ms": 0.0, "collectives": 1}
    extra |= {"bytes_raw": 10**6, "bytes_wire": int(1e6 * share)}
    extra |= {"gradient_bytes_raw": 10**6, "gradient_bytes_wire": int(1e6 * share)}
    if name != "none":
        extra |= {"compresses": 1, "compress_ms": 2.0, "decompress_ms": 1.0}
        extra |= {"grad_rel_error": 0.3, "residual_norm": 5.0} if measured else {}
    run = make_run(extra=extra, seed=seed, overrides=(f"compress.name={name}",))
    declared = (*COMM_COLUMNS, *COMPRESS_COLUMNS, *ERROR_COLUMNS)
    write_columns(run.ranks_dir, [column for column in declared if column.name in extra])
    for rank in range(2):
        with CallWriter(run.calls_file(rank)) as writer:
            for step in range(50):
                begun = 10**9 * step
                writer.write(step, [Call("all_reduce", -1, step, int(1e6 * share), begun, begun + int(4e6 * share))])
    lines = [f"{step},{0.1 * at},{at},512" for step, at in zip(STEPS, PERPLEXITY[name], strict=True)]
    write_text(run.path / "eval.csv", "\n".join(["step,loss,perplexity,samples", *lines]) + "\n")
    return run


def compressed_arms(make_run: Callable[..., Run], launches: int = 2, measured: bool = True) -> list[ArmView]:
    """An arm of each compressor."""
    return [
        ArmView(name, tuple(merge_run(compressed_run(make_run, name, seed, measured)) for seed in range(launches)))
        for name in SENT
    ]
