"""The data set of a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.config.schema import Workload
from dynbench.plugins import DATASETS
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.labels import numbered_as


def load_dataset(settings: Workload, classes: Sequence[str] = ()) -> Splits:
    """The samples of `workload.dataset`.

    Args:
        settings: the configuration's `workload` section.
        classes: those of a trained model in order, whose numbers the samples get by name; none keeps the data's own.

    Raises:
        DataError: a file that cannot be used, or a class that the model does not tell.
        HubError: hub data that are neither cached nor reachable.
    """
    splits: Splits = DATASETS.find(settings.dataset).load()(settings)
    return numbered_as(splits, classes, settings.model) if classes else splits
