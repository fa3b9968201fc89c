"""Length traces of what can be trained on: a data set as the configuration describes it, or that of a run."""

from __future__ import annotations

from dynbench.config.schema import Config
from dynbench.errors import UsageError
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


def _trace(config: Config, name: str) -> Trace:
    from dynbench.workloads.registry import build_workload

    return Trace(name, build_workload(config).train.lengths, f"workload.dataset {config.workload.dataset}")
