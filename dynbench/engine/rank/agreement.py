"""Ranks that were started apart must have been started alike."""

from __future__ import annotations

from dynbench.config.digest import NOT_IDENTITY, differences
from dynbench.config.schema import Config
from dynbench.engine.rank.exchange import gather_objects
from dynbench.errors import ConfigError
from dynbench.plugins.outside import VARIABLE, digests

_MAY_DIFFER = (*(key for key in NOT_IDENTITY if key != "train.seed"), "workload.data_path", "workload.eval_path")
"""Keys of this node alone; data are compared by fingerprint instead of path."""


def check_same_config(config: Config) -> None:
    """Refuse ranks that were started with different configurations or plug-ins from outside; a collective.

    Raises:
        ConfigError: one line per plug-in's file or key that differs from rank 0's; raised on every rank.
    """
    _check_same_plugins()
    first, *others = gather_objects(config)
    problems = [
        f"nodes disagree in config: {key} is {ours!r} on rank 0, {theirs!r} on rank {rank}"
        for rank, other in enumerate(others, 1)
        for key, (ours, theirs) in differences(first, other).items()
        if key not in _MAY_DIFFER
    ]
    if problems:
        raise ConfigError(problems, "Start every node with the same settings.")


def check_same_data(fingerprint: str) -> None:
    """Refuse ranks that loaded different data; a collective.

    Raises:
        ConfigError: some rank's fingerprint is not rank 0's; raised on every rank.
    """
    first, *others = gather_objects(fingerprint)
    problems = [
        f"nodes disagree in data: fingerprint {first} on rank 0, {other} on rank {rank}"
        for rank, other in enumerate(others, 1)
        if other != first
    ]
    if problems:
        raise ConfigError(problems, "Point workload.data_path and the caches at the same data on every node.")


def _check_same_plugins() -> None:
    """First of all: what other plug-ins declare has other settings."""
    first, *others = gather_objects(digests())
    problems = [
        f"nodes disagree in plug-ins: {file} is {first.get(file, 'not loaded')} on rank 0, "
        f"{other.get(file, 'not loaded')} on rank {rank}"
        for rank, other in enumerate(others, 1)
        for file in dict.fromkeys((*first, *other))
        if first.get(file) != other.get(file)
    ]
    if problems:
        raise ConfigError(problems, f"Name the same files in {VARIABLE} on every node.")
