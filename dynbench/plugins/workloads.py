"""The workloads: what is trained."""

from __future__ import annotations

from dataclasses import dataclass

from dynbench.plugins.registry import Entry, Registry


@dataclass(frozen=True)
class WorkloadEntry(Entry):
    """A class that follows the protocol of `dynbench.workloads.base.Workload`, called with the whole configuration."""


WORKLOADS: Registry[WorkloadEntry] = Registry(
    "workload",
    "workload.name",
    (
        WorkloadEntry(
            "text_classification",
            "one label per text, cross entropy",
            "dynbench.workloads.text_classification:TextClassification",
        ),
    ),
)
