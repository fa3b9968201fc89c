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


class TimedOptions(Section):
    """Of everything that is timed over and over."""

    iterations: PositiveInt = 20
    """Iterations that are timed, per case."""
    warmup: NonNegativeInt = 5
    """Iterations before them."""


class CollectivesOptions(TimedOptions):
    """Of the collectives."""

    sizes_mib: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (1.0, 10.0)
    """Sizes of the buffer, MiB."""
    processes: Annotated[int, Field(ge=2, le=MOST_RANKS)] = 2
    """Ranks, one process each."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """NCCL runs on GPUs, gloo on the CPU; `auto` is NCCL where there is a GPU for each process."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the elements."""


class AttentionOptions(TimedOptions):
    """Of attention over a packed row."""

    tokens: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (256, 512, 1024, 2048)
    """Tokens of a row."""
    heads: PositiveInt = 4
    """Heads of the layer."""
    channels: PositiveInt = 64
    """Of a head; the layer is as wide as all heads together."""
    mean: PositiveInt = 24
    """Mean length of the row's samples, about, tokens."""
    longest: PositiveInt = 256
    """No sample is longer, tokens."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What computes; `auto` is the GPU where there is one."""

    @property
    def width(self) -> int:
        """Channels over all heads."""
        return self.heads * self.channels


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
        BenchmarkEntry(
            "attention",
            "attention over a packed row by length, re-padded and with a mask: time by tokens per row",
            "dynbench.bench.attention:Attention",
            AttentionOptions,
        ),
    ),
)
