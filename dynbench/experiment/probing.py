"""A probe before the training that uses it, where the configuration asks for one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dynbench.config.rules import makes_probe
from dynbench.config.schema import Config
from dynbench.engine.resolve import this_machine
from dynbench.probe.prober import run_probe
from dynbench.runs.store import RunStore

log = logging.getLogger(__name__)


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
    return config.model_copy(update={"probe": config.probe.model_copy(update={"run": run.id})})
