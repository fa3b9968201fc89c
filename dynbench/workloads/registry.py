"""The workloads by name; adding one is one file, one line here, and its name in the schema."""

from __future__ import annotations

from collections.abc import Callable

from dynbench.config.schema import Config
from dynbench.workloads.base import Workload
from dynbench.workloads.text_classification import TextClassification

REGISTRY: dict[str, Callable[[Config], Workload]] = {
    "text_classification": TextClassification,
}


def build_workload(config: Config) -> Workload:
    """The workload of `workload.name` with its data loaded and tokenised; no model is built yet.

    Raises:
        DataError: a data file or vocabulary that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
    """
    return REGISTRY[config.workload.name](config)
