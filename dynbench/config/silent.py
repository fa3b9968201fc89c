"""A training without its communication, which takes turns with it: the settings that it has otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from dynbench.config.change import changed
from dynbench.config.digest import differences
from dynbench.config.schema import Config

OF_SILENT: Mapping[str, object] = {
    "sync.communicate": False,
    "compress.name": "none",
    "train.exposed": False,
    "train.memory_parts": False,
    "train.save_model": False,
    "train.tensorboard": False,
}
"""The first, and what it makes idle."""
SUFFIX = "-null"
"""Behind the name of its run, and of its arm."""


def without_communication(config: Config) -> Config:
    """The same training over a wire that sends nothing."""
    return changed(config, OF_SILENT)


def is_like(silent: Config, config: Config) -> bool:
    """Whether one configuration is the other without communication."""
    apart = differences(config, silent).keys()
    return "sync.communicate" in apart and config.sync.communicate and apart <= OF_SILENT.keys()
