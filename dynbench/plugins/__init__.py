"""Every kind of plug-in by name, and how one more is registered.

A file that is named in `DYNBENCH_PLUGINS`, or a module that is an entry point of the group `dynbench.plugins`,
registers its plug-ins with a line each:

    from dynbench.plugins import PolicyEntry, Section, register

    class Options(Section):
        turns: int = 1
        '''How often the batch is turned.'''

    register(PolicyEntry("turned", "the batch turned round", "my_policy:Turned", Options))

The class may stand in the same file and be given in place of `"my_policy:Turned"`. The configuration is assembled from
what the file registers, so that `dynbench.config.schema`, and what imports it, is imported there under `TYPE_CHECKING`
only.
"""

from __future__ import annotations

from typing import Any

from dynbench.plugins.benchmarks import BENCHMARKS, BenchmarkEntry
from dynbench.plugins.compressors import COMPRESSORS, CompressorEntry
from dynbench.plugins.datasets import DATASETS, DatasetEntry
from dynbench.plugins.policies import POLICIES, PolicyEntry
from dynbench.plugins.registry import Entry, Registry, Section, options_of
from dynbench.plugins.strategies import STRATEGIES, StrategyEntry
from dynbench.plugins.workloads import WORKLOADS, WorkloadEntry

__all__ = [
    "BENCHMARKS",
    "COMPRESSORS",
    "DATASETS",
    "KINDS",
    "POLICIES",
    "STRATEGIES",
    "WORKLOADS",
    "BenchmarkEntry",
    "CompressorEntry",
    "DatasetEntry",
    "Entry",
    "PolicyEntry",
    "Registry",
    "Section",
    "StrategyEntry",
    "WorkloadEntry",
    "options_of",
    "register",
]

KINDS: dict[str, tuple[type[Entry], Registry[Any]]] = {
    "policies": (PolicyEntry, POLICIES),
    "strategies": (StrategyEntry, STRATEGIES),
    "compressors": (CompressorEntry, COMPRESSORS),
    "workloads": (WorkloadEntry, WORKLOADS),
    "datasets": (DatasetEntry, DATASETS),
    "benchmarks": (BenchmarkEntry, BENCHMARKS),
}
"""Plural to the form of an entry and the registry."""


def register(entry: Entry) -> None:
    """Add a plug-in to the registry of its kind.

    Raises:
        UsageError: a name that is taken, or an option that another plug-in declares otherwise.
    """
    next(registry for form, registry in KINDS.values() if isinstance(entry, form)).add(entry)
