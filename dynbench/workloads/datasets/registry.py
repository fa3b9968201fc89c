"""The datasets by name; adding one is one file, one line here, and its name in the schema."""

from __future__ import annotations

from collections.abc import Callable

from dynbench.config.schema import Workload
from dynbench.workloads.datasets import csv, embedded, jsonl, lengths, lognormal, sst2, tsv
from dynbench.workloads.datasets.base import Splits

REGISTRY: dict[str, Callable[[Workload], Splits]] = {
    "embedded": embedded.load,
    "lognormal": lognormal.load,
    "sst2": sst2.load,
    "tsv": tsv.load,
    "jsonl": jsonl.load,
    "csv": csv.load,
    "lengths": lengths.load,
}


def load_dataset(settings: Workload) -> Splits:
    """The samples of `workload.dataset`.

    Raises:
        DataError: a file that cannot be used.
        HubError: hub data that are neither cached nor reachable.
    """
    return REGISTRY[settings.dataset](settings)
