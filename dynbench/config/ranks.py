"""How many ranks there are, which of them train, and which serve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dynbench.plugins import STRATEGIES

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
