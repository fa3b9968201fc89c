"""Strategies and compressors with a planted fault each, which the judges of the good ones must notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from toys import Naive, TwoStages

from dynbench.compress.base import Compressor
from dynbench.sync.base import Strategy
from dynbench.sync.fsdp import Fsdp
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment


class ReadyLate(Naive):
    """Communication counts as compute."""

    def finish(self) -> None:
        ready, self.on_ready = self.on_ready, lambda: None
        super().finish()
        self.on_ready = ready
        ready()


class ForgetsMicroBatches(Naive):
    """Only the last micro-batch's gradient is left."""

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        yield
        self.model.zero_grad()


class NormOfAShard(Fsdp):
    """Every rank clips by the norm of its own part."""

    def gradient_norm(self) -> Tensor:
        return nn.utils.get_total_norm(self.module.shards)


class ForgetsToDivide(TwoStages):
    """Sums."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        super().mean(channel, flat, segments)
        flat.mul_(channel.world_size)


class Fails(TwoStages):
    """Raises on rank 0, between two collectives."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        super().mean(channel, flat, segments)
        if channel.rank == 0 and self.calls == 3:
            raise ArithmeticError("cannot compress")


STRATEGIES: dict[str, type[Strategy]] = {
    "ready_late": ReadyLate,
    "forgets_micro_batches": ForgetsMicroBatches,
    "norm_of_a_shard": NormOfAShard,
}
COMPRESSORS: dict[str, type[Compressor]] = {"forgets_to_divide": ForgetsToDivide, "fails": Fails}
