"""What the settings of a command were given for, once it is decided what they mean here."""

from __future__ import annotations

from pathlib import Path

from dynbench.config.rules import makes_probe, rule_warnings
from dynbench.config.schema import Config
from dynbench.config.situation import Command, Situation
from dynbench.engine.launching.probe_use import probe_warnings
from dynbench.engine.launching.resolve import Resolved


def situation(command: Command, given: Config, resolved: Resolved, *, attached: bool = False) -> Situation:
    """The situation of a command that launches ranks.

    Args:
        command: `train`, `probe`, or `compare` for one of its arms.
        given: the settings as asked for.
        resolved: what they were decided to mean.
        attached: torchrun or srun has started the ranks.
    """
    config = resolved.config
    probes = not attached and makes_probe(given, on_gpus=config.launch.device == "cuda")
    return Situation(command, given, config, resolved.world_size, attached=attached, probes=probes)


def launch_warnings(asked: Config | None, resolved: Resolved, root: Path, *, attached: bool = False) -> list[str]:
    """What a training run is warned about.

    Args:
        asked: the settings as asked for, to name those that nothing reads; None where that has been done.
        resolved: what they were decided to mean.
        root: results folder in which a probe run is looked up.
        attached: torchrun or srun has started the ranks.
    """
    situations = [] if asked is None else [situation("train", asked, resolved, attached=attached)]
    return [
        *rule_warnings(resolved.config, resolved.world_size, situations),
        *probe_warnings(resolved.config, resolved.workers, root, attached=attached),
    ]
