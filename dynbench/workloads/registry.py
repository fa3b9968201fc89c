"""The workloads by name; adding one is one file, one line here, and its name in the schema.

A workload of the user's own is in no registry: `workload.name` says where its class is.
"""

from __future__ import annotations

from collections.abc import Callable

from dynbench.config.schema import Config
from dynbench.workloads.base import Workload
from dynbench.workloads.own_workload import OwnWorkload
from dynbench.workloads.text_classification import TextClassification

REGISTRY: dict[str, Callable[[Config], Workload]] = {
    "text_classification": TextClassification,
}


def build_workload(config: Config) -> Workload:
    """The workload of `workload.name` with its data loaded and tokenised; no model is built yet.

    Raises:
        DataError: a data file or vocabulary that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError, WorkerFailed: a workload of the user's own that cannot be used, or whose code raised an error.
    """
    return OwnWorkload(config) if config.workload.is_own else REGISTRY[config.workload.name](config)
