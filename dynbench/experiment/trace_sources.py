"""Length traces of what can be trained on: a data set as the configuration describes it, or that of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dynbench.config.part_rules import has_lengths
from dynbench.config.schema import Config, changed, flatten
from dynbench.config.values import field_of
from dynbench.errors import DataError, UsageError
from dynbench.runs.records import read_lengths
from dynbench.runs.run import Run
from dynbench.schedule.traces import Trace

LONGEST = 512
"""Samples are loaded up to this length where `workload.max_length` asks for no longer ones, tokens."""


def dataset_trace(config: Config) -> Trace:
    """Lengths of the training samples of `workload.*`, not cut at `workload.max_length` but as far as they are loaded.

    A workload of the user's own is run for it: the settings are the user's, not those of a run folder.

    Raises:
        DynbenchError: as loading the data for training does.
    """
    wanted = max(LONGEST, config.workload.max_length)
    trace = _trained_as(_trace(changed(config, {"workload.max_length": wanted})), config)
    longest = wanted if trace.positions is None else min(wanted, trace.positions)
    whole = config.workload.runs_own_code or int(trace.lengths.max(initial=0)) < longest
    return trace if whole else replace(trace, source=f"{trace.source}, cut to {longest} tokens as it is loaded")


def training_trace(config: Config) -> Trace:
    """Lengths of the training samples of `workload.*` as `train` takes them, cut and the subset drawn.

    A workload of the user's own is run for it.

    Raises:
        DynbenchError: as loading the data for training does.
    """
    return _trained_as(_trace(config), config)


def run_trace(run: Run) -> Trace:
    """As `trained_trace`, under the run's name; what was decided for its machine is left to be decided again.

    Raises:
        UsageError: the run has trained on nothing, or on samples without lengths.
        DataError, HubError, RecordError: as `trained_trace`.
    """
    record = run.record()
    if record.command != "train":
        raise UsageError(f"{run.label}: a run of `{record.command}` has no data set", "Name a run of `dynbench train`.")
    return replace(_trained_as(trained_trace(run), undecided_config(run)), name=run.label)


def trained_trace(run: Run) -> Trace:
    """The very lengths that a run trained on, after truncation and subset, and what its model takes.

    They are made anew from the data, or taken from the cache. Code of the user's own is never run for a run folder:
    such a run keeps its lengths.

    Raises:
        DataError: the data is no longer what the run trained on; or as loading it does.
        HubError: as loading it does.
        RecordError: its configuration or provenance cannot be read.
    """
    from dynbench.workloads.registry import build_workload

    config, data, source = run.config(), run.env().get("data"), f"training data of {run.label}"
    _check_lengths(config)
    if config.workload.runs_own_code:
        lengths, positions = read_lengths(run)
        return _trained_as(Trace(config.workload.name, lengths, source, positions), config)
    workload = build_workload(changed(config, {"workload.cache_dir": None}))  # a run says nowhere where to write
    train = workload.train
    trained = data.get("fingerprint") if isinstance(data, Mapping) else None
    if trained is not None and trained != train.fingerprint:
        raise DataError(
            f"{run.label}: workload.dataset {config.workload.dataset} is no longer the data that it trained on",
            "Bring the data back, or train again.",
        )
    found = Trace(config.workload.dataset, train.lengths, source, workload.positions, second=train.second)
    return _trained_as(found, config)


def _trace(config: Config) -> Trace:
    from dynbench.workloads.registry import build_workload

    _check_lengths(config)
    workload, key = build_workload(config), "name" if config.workload.runs_own_code else "dataset"
    name = getattr(config.workload, key)
    train = workload.train
    return Trace(name, train.lengths, f"workload.{key} {name}", workload.positions, second=train.second)


def _check_lengths(config: Config) -> None:
    """Refuse to plan offline what no length tells apart.

    Raises:
        UsageError: the workload's samples have no lengths.
    """
    if not has_lengths(config):
        raise UsageError(
            f"samples of {config.workload.name} have no lengths, so that there is nothing to plan by them",
            "Name a trace, a data set of texts, or a run on one.",
        )


def undecided_config(run: Run) -> Config:
    """The configuration of a run, with what was decided for its machine left to be decided again.

    Raises:
        RecordError: its configuration or provenance cannot be read.
    """
    decisions = run.env().get("decisions")
    found = {key: field_of(key) for key in decisions} if isinstance(decisions, Mapping) else {}
    defaults = {key: field[0].get_default(call_default_factory=True) for key, field in found.items() if field}
    return changed(run.config(), defaults)


def _trained_as(trace: Trace, config: Config) -> Trace:
    """The trace with the settings that train on it."""
    settings = {key: value for key, value in flatten(config).items() if key.startswith("workload.")}
    return replace(trace, workload=settings, train_max_length=config.workload.max_length)
