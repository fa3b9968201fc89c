"""The workload of a configuration: one of the registry, or a class that `workload.name` says the place of."""

from __future__ import annotations

from dynbench.config.schema import Config
from dynbench.plugins import WORKLOADS
from dynbench.workloads.base import Workload
from dynbench.workloads.own_workload import OwnWorkload


def build_workload(config: Config) -> Workload:
    """The workload of `workload.name` with its data loaded and tokenised; no model is built yet.

    Raises:
        DataError: a data file or vocabulary that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError, WorkerFailed: a workload of the user's own that cannot be used, or whose code raised an error.
    """
    if config.workload.is_own:
        return OwnWorkload(config)
    workload: Workload = WORKLOADS.find(config.workload.name).load()(config)
    return workload
