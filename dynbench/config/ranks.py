"""How many ranks there are, which of them train and which serve, and what each stores of the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.compressors import FeedbackOptions
from dynbench.plugins.strategies import DilocoOptions, FsdpOptions

if TYPE_CHECKING:
    from dynbench.config.schema import Config


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who of a world does what: its first ranks serve and train nothing, the others are the workers.

    Args:
        world_size: their number.
        servers: how many of them serve.
    """

    world_size: int
    servers: int = 0

    @property
    def workers(self) -> int:
        """Ranks that train (G)."""
        return self.world_size - self.servers

    def serves(self, rank: int) -> bool:
        """Whether a rank trains nothing."""
        return rank < self.servers

    def worker(self, rank: int) -> int:
        """A worker's number among the workers, from 0."""
        return rank - self.servers

    def by_worker(self, values: Mapping[int, T]) -> dict[int, T]:
        """What is given by rank, by the number of the worker; of servers nothing."""
        return {self.worker(rank): value for rank, value in values.items() if not self.serves(rank)}

    def title(self, rank: int) -> str:
        """`rank 2`; where some serve, `rank 0 (server)` or `rank 2 (worker 2)`, each kind counted from 1."""
        if not self.servers:
            return f"rank {rank}"
        if not self.serves(rank):
            return f"rank {rank} (worker {self.worker(rank) + 1})"
        return f"rank {rank} (server)" if self.servers == 1 else f"rank {rank} (server {rank + 1})"

    def __str__(self) -> str:
        """`4 ranks`, or `3 workers (of 4 ranks)`."""
        return f"{self.workers} workers (of {self.world_size} ranks)" if self.servers else f"{self.world_size} ranks"


def shared_ranks(configs: Sequence[Config], world_size: int) -> Ranks:
    """Who of `world_size` ranks trains in a launch of several arms; all, where the arms do not agree."""
    found = {ranks_of(config, world_size) for config in configs}
    return found.pop() if len(found) == 1 else Ranks(world_size)


def ranks_of(config: Config, world_size: int) -> Ranks:
    """Who of `world_size` ranks trains under the strategy `sync.name`."""
    return ranks_under(config.sync.name, world_size)


def ranks_under(name: str, world_size: int) -> Ranks:
    """Who of `world_size` ranks trains under a strategy, by its name in the registry."""
    strategy = STRATEGIES.get(name)
    return Ranks(world_size, strategy.servers if strategy else 0)


def moments(config: Config) -> int:
    """Numbers that the optimizer keeps for each parameter."""
    if config.train.optimizer == "sgd":
        return int(config.train.momentum > 0)
    return 2


def parameter_copies(config: Config, ranks: Ranks, *, in_step: bool = False) -> float:
    """Copies of the parameters on a rank that trains: weights, gradients, optimizer state, and the strategy's own.

    Those of the compressor are counted by `residual_copies`.

    Args:
        config: its strategy and optimizer.
        ranks: over which some strategies divide.
        in_step: with what the strategy makes within a step.
    """
    entry, state = STRATEGIES.find(config.sync.name), moments(config)
    made = entry.in_step + (entry.reads("reshard") and not options_of(config.sync, FsdpOptions).reshard)
    in_flight = entry.reads("overlap_steps") and options_of(config.sync, DilocoOptions).overlap_steps > 0
    whole = entry.whole + in_flight + state * (entry.moments == "whole") + made * in_step
    return whole + (entry.divided + state * (entry.moments == "divided")) / max(1, ranks.workers)


def server_copies(config: Config) -> float:
    """Copies of the parameters on a rank that serves, within a step; 0 where none serves."""
    entry = STRATEGIES.find(config.sync.name)
    return entry.served + moments(config) if entry.servers else 0.0


def residual_copies(config: Config) -> int:
    """Copies of the parameters in the residuals of the compressor; 0 for a user's own class, where it is not known."""
    entry = COMPRESSORS.get(config.compress.name)
    if entry is None or not entry.reads("error_feedback"):
        return 0
    feedback = options_of(config.compress, FeedbackOptions).error_feedback
    return int(entry.feedback if feedback == "auto" else feedback)


def copies_text(config: Config, ranks: Ranks) -> str:
    """What is in the memory of a rank, in words."""
    entry, copies = STRATEGIES.find(config.sync.name), parameter_copies(config, ranks)
    text = f"{entry.name}, under which a rank holds {copies:.3g} copies of the parameters between steps"
    if entry.moments == "divided":
        what = "the optimizer's state" if entry.whole else "parameters, gradients and the optimizer's state"
        text += f", with {what} divided by {ranks.workers} ranks"
    if entry.moments == "served":
        text += ", and the server the optimizer's state"
    if COMPRESSORS.find(config.compress.name).compresses:
        text += f"; and what compress.name {config.compress.name} keeps"
    return text
