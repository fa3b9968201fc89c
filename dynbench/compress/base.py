"""What is asked of a compressor.

Files of plug-ins import this module while the configuration is still being assembled from what they register.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dynbench.errors import RecordError
from dynbench.runs.columns import Column
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


def uncompressed(settings: Compress) -> None:
    """The compressor `none`: gradients travel as they are, without a queue."""


class Compressor(ABC):
    """Averages gradients over ranks in fewer bytes, by collectives of its own.

    Its methods run one after the other in a thread of the wire's, in the same order on all ranks, without gradients
    being recorded. They wait for what they send. What is kept from step to step belongs to a segment's name: how
    gradients are cut into flat ones may change.

    Args:
        settings: the `compress` section; None for the defaults.
    """

    columns: ClassVar[tuple[Column, ...]] = ()
    """Columns that it adds to a rank's rows."""

    def __init__(self, settings: Compress | None = None) -> None:
        self.settings = settings

    def weigh(self, weight: float) -> None:  # noqa: B027  # most do not ask
        """What this rank's samples of the step count, for compressors whose ranks vote; before the first gradient."""

    @abstractmethod
    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """The mean over ranks of `flat`, shape [n], in place; dividing by their number is the compressor's work."""

    def mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """This rank's part of that mean into `shard`, shape [n/G]; compressors that can send less override this."""
        self.mean(channel, flat, segments)
        shard.copy_(torch.chunk(flat, channel.world_size)[channel.rank])

    def row(self) -> Mapping[str, object]:
        """The values of `columns` for the step that ended; asked for when nothing is being sent."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """What it keeps from step to step, to be saved with the model; nothing, for most."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up a saved state.

        Raises:
            RecordError: a state of another compressor.
        """
        if state:
            name = type(self).__name__ if self.settings is None else self.settings.name
            raise RecordError(
                f"compress.name: {name!r} keeps nothing between steps, the saved state holds {', '.join(state)}",
                "Go on with the compressor that it was saved from.",
            )
