"""The mean of gradients over ranks by what a codec makes of them, with error feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.compress.base import seed_of
from dynbench.compress.codec import Codec, Known, Whole, in_float32
from dynbench.compress.compressing import Common, Compressing, SecondResiduals, feedback_of, settle
from dynbench.compress.message import Message, Scratch
from dynbench.errors import UsageError
from dynbench.plugins import options_of
from dynbench.plugins.compressors import CompressionOptions
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Part, Segment, cut

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


@dataclass
class Item:
    """A part, and how it is sent.

    Attributes:
        values: what is sent of it, shape [numel]: float32, or as it is where it is sent whole.
        feedback: `values` is the residual, and what was sent is taken from it.
    """

    part: Part
    codec: Codec
    known: Known
    values: Tensor
    feedback: bool = False

    def write(self, payload: Sequence[Tensor]) -> None:
        """Into tensors of the codec's fields."""
        self.codec.encode(self.values, self.known, payload)
        if self.feedback:
            self.codec.add(payload, self.known, self.values, -1.0)
            settle(self.values)


Items = list[list[Item]]
"""Of every piece of a flat gradient."""


class CompressedMean(Compressing):
    """Averages gradients parameter by parameter, whatever they are cut into.

    Args:
        codec: what is sent of a parameter.
        common: as in `Compressing`; there is error feedback by default where the codec leaves out much.

    Raises:
        UsageError: error feedback with a codec that is not contractive.
    """

    def __init__(self, codec: Codec, **common: Unpack[Common]) -> None:
        if common.get("error_feedback") is None:
            common["error_feedback"] = codec.leaves_out
        super().__init__(**common)
        if self.error_feedback and not codec.contractive:
            raise UsageError(
                f"compress.error_feedback: {codec.name} diverges with it in its unbiased form",
                "Set compress.contractive to true, or compress.error_feedback to false.",
            )
        self.codec = codec
        self._second = SecondResiduals()
        self._weight = 1.0
        self._bytes = Scratch()

    @classmethod
    def from_settings(cls, codec: Codec, settings: Compress | None) -> CompressedMean:
        """As the `compress` section says; None for the defaults."""
        made = cls(codec, error_feedback=feedback_of(settings, codec.leaves_out))
        made.configured(settings)
        return made

    def weigh(self, weight: float) -> None:
        """What this rank's samples of the step count."""
        self._weight = weight

    def _mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """By the codec's way."""
        ranks = channel.world_size
        pieces = ranks if self.codec.way == "two_stage" else 1
        size = -(-len(flat) // pieces)
        with self._begun(channel, flat, segments, size, pieces) as items:
            if items is None:
                channel.all_reduce(flat.div_(ranks)).wait()
            elif self.codec.way == "sum":
                self._summed(channel, items, flat, None)
            elif self.codec.way == "gather":
                message, sent = self._written(items)
                received = self._bytes("gathered", ranks * message.nbytes, flat)
                channel.all_gather(received, sent).wait()
                self._average(channel, message, received, items[0], 0, flat, 0)
            else:
                own = torch.zeros(size, dtype=flat.dtype, device=flat.device)
                message = self._scattered(channel, items, own, size)
                self._given_back(channel, items, message, own, flat, size)

    def _mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """Likewise, without what only other ranks need."""
        size, own = shard.numel(), shard.view(-1)
        with self._begun(channel, flat.view(-1), segments, size, channel.world_size) as items:
            if items is None:
                channel.reduce_scatter(own, flat.view(-1).div_(channel.world_size)).wait()
            elif self.codec.way == "sum":
                self._summed(channel, items, own.zero_(), size)
            else:
                self._scattered(channel, items, own.zero_(), size)

    @contextmanager
    def _begun(
        self, channel: Channel, flat: Tensor, segments: Sequence[Segment], size: int, pieces: int
    ) -> Iterator[Items | None]:
        """The parts of every piece; None where all are sent as they are."""
        self.codec.check_ranks(channel.world_size)
        names = self._compressed(segments)
        if not names:
            yield None
            return
        with self._times.of("compress_ms"):
            cuts = cut(segments, size, pieces)
            self._second.hand_over(cuts, channel.rank, self._residuals, flat)
            items = [[self._item(channel, part, flat, part.name in names) for part in piece] for piece in cuts]
        self._agree(channel, items)
        for item in self._encoded(items):
            n, known = item.part.numel, item.known
            self._counted(n, self.codec.kept(n, known), self.codec.index_bytes(n, known))
        yield items

    def _item(self, channel: Channel, part: Part, flat: Tensor, encoded: bool) -> Item:
        seed = seed_of(self.seed, part.name, part.start, self._step(part.name))
        known = Known(seed, channel.rank, channel.world_size, weight=self._weight)
        if not encoded:
            return Item(part, Whole(flat.dtype), known, part.of(flat))
        return Item(part, self.codec, known, self._corrected(part, flat), self.error_feedback)

    def _encoded(self, items: Items) -> list[Item]:
        return [item for piece in items for item in piece if item.codec is self.codec]

    def _agree(self, channel: Channel, items: Items) -> None:
        """The greatest of the ranks' numbers for every part."""
        if not self.codec.measures:
            return
        measured = self._encoded(items)
        with self._times.of("compress_ms"):
            numbers = torch.stack([self.codec.measure(item.values).double() for item in measured])
        with self._beside():
            channel.all_reduce(numbers, dist.ReduceOp.MAX).wait()
        for item, number in zip(measured, numbers.unbind(), strict=True):
            item.known = replace(item.known, number=number)

    def _written(self, items: Items) -> tuple[Message, Tensor]:
        """All payloads: where they lie, and one message behind the other for every piece, of uint8."""
        message = Message([[item.codec.fields(item.part.numel, item.known) for item in piece] for piece in items])
        like = next(item.values for piece in items for item in piece)
        sent = self._bytes("sent", len(items) * message.nbytes, like)
        self._counts["payload_bytes"] += len(sent)
        with self._times.of("compress_ms"):
            for number, piece in enumerate(items):
                row = message.row(sent, number)
                for item, payload in zip(piece, message.payloads(row, number), strict=True):
                    item.write(payload)
        return message, sent

    def _summed(self, channel: Channel, items: Items, out: Tensor, size: int | None) -> None:
        """Payloads added up on the way, what is sent whole apart.

        Args:
            channel: to the other ranks.
            items: of one piece, or of a piece for each rank.
            out: receives the mean of the one, or of this rank's.
            size: elements of a piece, of several.
        """
        rank = 0 if size is None else channel.rank
        for number, whole in enumerate((False, True)):
            lane = [[item for item in piece if (item.codec is not self.codec) == whole] for piece in items]
            if not any(lane):
                continue
            message, sent = self._written(lane)
            dtype = next(item.codec.fields(1, item.known)[0].dtype for piece in lane for item in piece)
            received = sent if size is None else self._bytes("summed", message.nbytes, out)
            with self._beside(bool(number)):
                if size is None:
                    channel.all_reduce(sent.view(dtype)).wait()
                else:
                    channel.reduce_scatter(received.view(dtype), sent.view(dtype)).wait()
            with self._times.of("decompress_ms"):
                for item, payload in zip(lane[rank], message.payloads(received, rank), strict=True):
                    with in_float32(item.codec, item.part.of(out, rank * (size or 0))) as target:
                        item.codec.decode(payload, replace(item.known, summed=channel.world_size), target)

    def _scattered(self, channel: Channel, items: Items, own: Tensor, size: int) -> Message:
        """Every rank's payloads of this rank's piece to it, averaged into `own`, shape [size]."""
        message, sent = self._written(items)
        received = self._bytes("scattered", len(sent), own)
        channel.all_to_all(received, sent).wait()
        self._average(channel, message, received, items[channel.rank], channel.rank, own, channel.rank * size)
        return message

    def _average(
        self,
        channel: Channel,
        message: Message,
        received: Tensor,
        piece: list[Item],
        number: int,
        out: Tensor,
        begin: int,
    ) -> None:
        """The mean of every rank's payloads of a piece into `out`, which begins at an element of the flat gradient."""
        with self._times.of("decompress_ms"):
            everyone = [message.payloads(message.row(received, rank), number) for rank in range(channel.world_size)]
            for place, item in enumerate(piece):
                with in_float32(item.codec, item.part.of(out, begin)) as target:
                    item.codec.mean_of([payloads[place] for payloads in everyone], item.known, target)

    def _given_back(
        self, channel: Channel, items: Items, message: Message, own: Tensor, flat: Tensor, size: int
    ) -> None:
        """The second stage: every rank's mean of its piece, compressed anew, to all."""
        with self._times.of("compress_ms"):
            mine = self._bytes("given", message.nbytes, flat)
            for item, payload in zip(items[channel.rank], message.payloads(mine, channel.rank), strict=True):
                mean = item.part.of(own, channel.rank * size)
                if item.codec is self.codec:
                    mean = self._second.corrected(item.part, mean) if self.error_feedback else mean.float()
                replace(item, values=mean, known=_of_second(item.known, channel.rank)).write(payload)
        received = self._bytes("gathered", channel.world_size * message.nbytes, flat)
        channel.all_gather(received, mine).wait()
        with self._times.of("decompress_ms"):
            for rank, piece in enumerate(items):
                for item, payload in zip(piece, message.payloads(message.row(received, rank), rank), strict=True):
                    with in_float32(item.codec, item.part.of(flat)) as target:
                        item.codec.decode(payload, _of_second(item.known, rank), target)

    @property
    def residual_bytes(self) -> int:
        """Of both stages."""
        return super().residual_bytes + self._second.nbytes

    def state_dict(self) -> dict[str, Tensor]:
        """Of both stages."""
        return super().state_dict() | {f"second.{name}": left for name, left in self._second.state().items()}


def _of_second(known: Known, rank: int) -> Known:
    return replace(known, seed=seed_of(known.seed, "second"), rank=rank)


def compressor(
    kind: Callable[..., Codec | Compressing],
    options: type[CompressionOptions] = CompressionOptions,
    /,
    **arguments: str,
) -> Callable[[Compress | None], Compressing]:
    """What makes a compressor of the `compress` section.

    Args:
        kind: the class, of a codec or of a compressor with collectives of its own.
        options: those that it reads.
        arguments: argument of the class to the option that is given to it.
    """

    def made(settings: Compress | None = None) -> Compressing:
        given = options_of(settings, options)
        found = kind(**{argument: getattr(given, option) for argument, option in arguments.items()})
        if isinstance(found, Codec):
            return CompressedMean.from_settings(found, settings)
        found.error_feedback = feedback_of(settings, found.error_feedback)
        found.configured(settings)
        return found

    return made
