"""A training in turns with the same without communication: what a step takes more is what communication costs it."""

from __future__ import annotations

from dynbench.config.change import changed
from dynbench.config.launches import Launches
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.engine.turn_order import Turns
from dynbench.errors import UsageError
from dynbench.experiment.meeting import least_turn, obstacles
from dynbench.plugins import STRATEGIES
from dynbench.runs.store import Naming, RunStore

OPTION = "--exposed"


def with_null(config: Config, naming: Naming, store: RunStore) -> tuple[list[tuple[Config, Naming]], Turns]:
    """The training and its like over a wire that sends nothing, and how they take turns.

    Args:
        config: what to train, probed where that is asked for.
        naming: what its run is called; the other one has `-null` behind that.
        store: registry that the runs are put into.

    Raises:
        UsageError: there is nothing to leave out, or the two cannot take turns.
        ConfigError: settings that cannot work.
    """
    resolved = resolve(config, this_machine(), store).config
    strategy = STRATEGIES.find(config.sync.name)
    if resolved.launch.launcher == "virtual":
        raise UsageError(
            f"{OPTION}: virtual ranks send nothing to each other", "Train on real ones: --launcher torchrun."
        )
    if not config.sync.trains:
        raise UsageError(f"{OPTION}: {config.sync.silent} sends nothing already", f"Leave {OPTION} out.")
    if strategy.servers:
        raise UsageError(
            f"{OPTION}: under sync.name {config.sync.name} a server steps by what workers send",
            f"Leave {OPTION} out, or choose another strategy: --sync ddp.",
        )
    silent = {"sync.communicate": False, "compress.name": "none", "train.save_model": False, "train.tensorboard": False}
    block = least_turn(resolved)
    arms = {"with": resolved, "null": changed(resolved, silent)}
    if found := list(obstacles(Launches(block=block), arms, "with")):
        raise UsageError(f"{OPTION}: the two cannot take turns: {'; '.join(found)}", f"Leave {OPTION} out.")
    named = naming.get("name")
    beside: Naming = {**naming, "name": None if named is None else f"{named}-null"}
    return [(config, naming), (changed(config, silent), beside)], Turns(tuple(arms), block, config.train.seed)
