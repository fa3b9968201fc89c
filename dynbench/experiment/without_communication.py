"""Trainings in turns with their likes without communication: what a step takes more is what communication costs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dynbench.config.launches import Launches
from dynbench.config.schema import Config
from dynbench.config.silent import SUFFIX, without_communication
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.turn_order import Turns
from dynbench.experiment.meeting import check_silent_turns, least_turn
from dynbench.runs.store import Naming, RunStore


class Launched(NamedTuple):
    """An arm of a launch."""

    arm: str
    config: Config
    naming: Naming
    """What its run is called."""
    member: int
    """Position of the arm that it is, or of which it is the like without communication, among those given."""
    silent: bool = False


def with_silent(arms: Sequence[tuple[str, Config, Naming]]) -> list[Launched]:
    """The arms, and behind each that asks for `train.exposed` its like without communication."""
    found = []
    for member, (arm, config, naming) in enumerate(arms):
        found.append(Launched(arm, config, naming, member))
        if config.train.exposed:
            name = naming.get("name")
            beside: Naming = {**naming, "name": None if name is None else f"{name}{SUFFIX}"}
            found.append(Launched(f"{arm}{SUFFIX}", without_communication(config), beside, member, silent=True))
    return found


def one_with_silent(config: Config, naming: Naming, store: RunStore) -> tuple[list[tuple[Config, Naming]], Turns]:
    """A training that asks for `train.exposed` with its like without communication, and how they take turns.

    Args:
        config: what to train, probed where that is asked for.
        naming: what its run is called.
        store: registry that the runs are put into.

    Raises:
        ConfigError: settings that cannot work, or with which the two cannot take turns.
    """
    resolved = resolve(config, this_machine(), store).config
    check_silent_turns({"train": resolved})
    arms = with_silent([("with", config, naming)])
    turns = Turns(tuple(one.arm for one in arms), least_turn(resolved), config.train.seed)
    return [(one.config, one.naming) for one in arms], turns


def turn_steps(launches: Launches, configs: Sequence[Config]) -> int:
    """Steps of a turn in a launch: as asked for; of one arm and its like, no fewer than the arm's work goes on for."""
    return max(launches.block, least_turn(configs[0])) if len(configs) == 1 else launches.block
