"""What the settings of a command were given for, once it is decided what they mean here."""

from __future__ import annotations

from pathlib import Path

from dynbench.config.rules import makes_probe, rule_warnings
from dynbench.config.schema import Config
from dynbench.config.unread import Use
from dynbench.engine.launching.probe_use import probe_warnings
from dynbench.engine.launching.resolve import Resolved


def use_of(given: Config, resolved: Resolved, *, attached: bool = False) -> Use:
    """What a command that launches ranks is about to do with its settings.

    Args:
        given: the settings as asked for.
        resolved: what they were decided to mean.
        attached: torchrun or srun has started the ranks.
    """
    config = resolved.config
    probes = not attached and makes_probe(given, on_gpus=config.launch.device == "cuda")
    return Use(given, config, resolved.world_size, attached=attached, probes=probes)


def launch_warnings(asked: Config | None, resolved: Resolved, root: Path, *, attached: bool = False) -> list[str]:
    """What a training run is warned about.

    Args:
        asked: the settings as asked for, to name those that nothing reads; None where that has been done.
        resolved: what they were decided to mean.
        root: results folder in which a probe run is looked up.
        attached: torchrun or srun has started the ranks.
    """
    uses = [] if asked is None else [use_of(asked, resolved, attached=attached)]
    return [
        *rule_warnings(resolved.config, resolved.world_size, uses),
        *probe_warnings(resolved.config, resolved.workers, root, attached=attached),
    ]
