"""Length traces of what can be trained on: a data set as the configuration describes it, or that of a run."""

from __future__ import annotations

from collections.abc import Mapping

from dynbench.config.schema import Config
from dynbench.errors import DataError, UsageError
from dynbench.runs.run import Run
from dynbench.schedule.traces import Trace


def dataset_trace(config: Config) -> Trace:
    """Lengths of the training samples of `workload.*`, truncated at `workload.max_length`.

    Raises:
        ConfigError, DataError, HubError: as loading the data for training does.
    """
    return _trace(config, config.workload.dataset)


def run_trace(run: Run) -> Trace:
    """Lengths of the samples that a run trained on, tokenised anew (or taken from the cache).

    Raises:
        UsageError: the run has trained on nothing.
        RecordError: its configuration cannot be read.
    """
    record = run.record()
    if record.command != "train":
        raise UsageError(
            f"--from-run {run.label}: a run of `{record.command}` has no data set", "Name a run of `dynbench train`."
        )
    return _trace(run.config(), run.label)


def trained_trace(run: Run) -> Trace:
    """The very lengths that a run trained on, after truncation and subset, and what its model takes.

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


def _trace(config: Config, name: str) -> Trace:
    from dynbench.workloads.registry import build_workload

    workload = build_workload(config)
    return Trace(name, workload.train.lengths, f"workload.dataset {config.workload.dataset}", workload.positions)
