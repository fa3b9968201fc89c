"""Length traces of what can be trained on: a data set as the configuration describes it, or that of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dynbench.config.schema import Config
from dynbench.errors import DataError, UsageError
from dynbench.runs.run import Run
from dynbench.schedule.traces import Trace


def dataset_trace(config: Config) -> Trace:
    """Lengths of the training samples of `workload.*`, truncated at `workload.max_length`.

    Raises:
        ConfigError, DataError, HubError: as loading the data for training does.
    """
    from dynbench.workloads.registry import build_workload

    workload, dataset = build_workload(config), config.workload.dataset
    return Trace(dataset, workload.train.lengths, f"workload.dataset {dataset}", workload.positions)


def run_trace(run: Run) -> Trace:
    """As `trained_trace`, under the run's name.

    Raises:
        UsageError: the run has trained on nothing.
        DataError, HubError, RecordError: as `trained_trace`.
    """
    record = run.record()
    if record.command != "train":
        raise UsageError(f"{run.label}: a run of `{record.command}` has no data set", "Name a run of `dynbench train`.")
    return replace(trained_trace(run), name=run.label)


def trained_trace(run: Run) -> Trace:
    """The very lengths that a run trained on, after truncation and subset, and what its model takes.

    They are made anew from the data, or taken from the cache.

    Raises:
        DataError: the data is no longer what the run trained on; or as loading it does.
        HubError: as loading it does.
        RecordError: its configuration or provenance cannot be read.
    """
    from dynbench.workloads.registry import build_workload

    config, data = run.config(), run.env().get("data")
    workload = build_workload(config)
    train = workload.train
    trained = data.get("fingerprint") if isinstance(data, Mapping) else None
    if trained is not None and trained != train.fingerprint:
        raise DataError(
            f"{run.label}: workload.dataset {config.workload.dataset} is no longer the data that it trained on",
            "Bring the data back, or train again.",
        )
    return Trace(config.workload.dataset, train.lengths, f"training data of {run.label}", workload.positions)
