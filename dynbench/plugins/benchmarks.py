"""The micro-benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from dynbench.plugins.registry import Entry, Registry


@dataclass(frozen=True)
class BenchmarkEntry(Entry):
    """A class that is called with its options."""


BENCHMARKS: Registry[BenchmarkEntry] = Registry("benchmark", "", ())
