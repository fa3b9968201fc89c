"""A probe before the training that uses it, where the configuration asks for one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dynbench.config.digest import NOT_IDENTITY, config_digest
from dynbench.config.held import copies_held
from dynbench.config.ranks import ranks_of
from dynbench.config.rules import makes_probe
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.probe.prober import run_probe
from dynbench.runs.store import RunStore

log = logging.getLogger(__name__)

NOT_PROBED = (
    *NOT_IDENTITY,
    *(
        "schedule",
        "analysis",
        "probe.run",
        "train.eval_every",
        "train.eval_samples",
        "train.exposed",
        "train.memory_parts",
    ),
    "launch.timeout_s",
)
"""Keys that arms may differ in without a probe measuring anything else."""
OF_SPLITS = ("sync", "compress")
"""Sections under which a further micro-batch is timed, and nothing else; the strategy and its options also decide who
trains, and what ranks hold."""


def wants_probe(config: Config) -> bool:
    """Whether a probe comes first, see `makes_probe`."""
    return makes_probe(config, on_gpus=config.launch.device != "cpu" and this_machine().gpus > 0)


def with_probe(config: Config, store: RunStore, report: Callable[[str], None] = log.info) -> Config:
    """The configuration with `probe.run` naming a probe made just now, where one is wanted; else as it is.

    Raises:
        DynbenchError: as `run_probe`.
    """
    if not wants_probe(config):
        return config
    run = run_probe(config, store, report=report)
    report(f"probed: {run.path}")
    return using_probe(config, run.id)


def using_probe(config: Config, run: str | None) -> Config:
    """The configuration with `probe.run` set."""
    return config.model_copy(update={"probe": config.probe.model_copy(update={"run": run})})


def splits(config: Config) -> bool:
    """Whether ranks may have several micro-batches in a step, so that what a further one costs decides plans."""
    return config.schedule.micro_batches != 1


def probe_identity(config: Config, store: RunStore, *, with_splits: bool) -> tuple[int, str, float, str]:
    """Equal for configurations of which a probe would measure the same.

    Args:
        config: settings as asked for.
        store: the registry.
        with_splits: whether what a further micro-batch costs counts.

    Raises:
        DynbenchError: as `resolve`.
    """
    resolved = resolve(config, this_machine(), store)
    digest = config_digest(resolved.config, NOT_PROBED if with_splits else NOT_PROBED + OF_SPLITS)
    held = copies_held(resolved.config, ranks_of(resolved.config, resolved.world_size), in_step=True)
    return resolved.workers, resolved.config.sync.name, held, digest
