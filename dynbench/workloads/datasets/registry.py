"""The data set of a configuration."""

from __future__ import annotations

from dynbench.config.schema import Workload
from dynbench.plugins import DATASETS
from dynbench.workloads.datasets.base import Splits


def load_dataset(settings: Workload) -> Splits:
    """The samples of `workload.dataset`.

    Raises:
        DataError: a file that cannot be used.
        HubError: hub data that are neither cached nor reachable.
    """
    splits: Splits = DATASETS.find(settings.dataset).load()(settings)
    return splits
