"""The micro-benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dynbench.plugins.registry import Entry, Registry
from dynbench.plugins.section import NonNegativeInt, PositiveFloat, PositiveInt, Section

MOST_RANKS = 64
"""Known sums of the all-reduce stay whole numbers that bfloat16 has (up to 256)."""


@dataclass(frozen=True)
class BenchmarkEntry(Entry):
    """A subclass of `dynbench.bench.base.Benchmark`, called with its options; its module imports no torch."""


class CollectivesOptions(Section):
    """Of the collectives."""

    sizes_mib: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (1.0, 10.0)
    """Sizes of the buffer, MiB."""
    processes: Annotated[int, Field(ge=2, le=MOST_RANKS)] = 2
    """Ranks, one process each."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """NCCL runs on GPUs, gloo on the CPU; `auto` is NCCL where there is a GPU for each process."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the elements."""
    iterations: PositiveInt = 20
    """All-reduces that are timed, per size."""
    warmup: NonNegativeInt = 5
    """All-reduces before them."""


BENCHMARKS: Registry[BenchmarkEntry] = Registry(
    "benchmark",
    "",
    (
        BenchmarkEntry(
            "collectives",
            "all-reduce over gloo or NCCL: time and bandwidth by size",
            "dynbench.bench.collectives:Collectives",
            CollectivesOptions,
        ),
    ),
)
