"""Shards of parameters gathered in one byte per element.

Each rank keeps its own shard in full precision, and all compute with what was rounded, as quantised weights of ZeRO++
do (Wang et al., arXiv:2306.10209). The gradient with respect to the rounded parameters is applied to the kept ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.futures import Future

from dynbench.compress.codec import Codec, Known, Whole, in_float32
from dynbench.compress.message import Message
from dynbench.compress.quantised import Fp8, Qsgd
from dynbench.wire.base import Gatherer
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment

BLOCK = 256
"""Elements of int8 that share a scale."""
LEAST_ELEMENTS = 1024
"""Parts of a shard that are smaller, as of biases and norms, are sent as they are."""

_CODECS: dict[str, Callable[[], Codec]] = {
    "int8": lambda: Qsgd(bits=8, bucket=BLOCK, contractive=True),
    "fp8": Fp8,
}


class CodedGather(Gatherer):
    """Every part of a shard by a codec, small ones as they are, in one message per rank.

    Args:
        codec: of the larger parts; one whose payloads can be read without the other ranks'.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def gather(self, channel: Channel, full: Tensor, shard: Tensor, parts: Sequence[Segment]) -> Future[Tensor]:
        """Every rank's `shard`, shape [n/G], rounded, into `full`, shape [n]."""
        ranks, known = channel.world_size, Known()
        codecs = [self.codec if part.numel >= LEAST_ELEMENTS else Whole(shard.dtype) for part in parts]
        message = Message([[codec.fields(part.numel, known) for codec, part in zip(codecs, parts, strict=True)]])
        sent = torch.empty(message.nbytes, dtype=torch.uint8, device=shard.device)
        for codec, part, payload in zip(codecs, parts, message.payloads(sent, 0), strict=True):
            values = part.of(shard.view(-1)).reshape(-1)
            codec.encode(values if isinstance(codec, Whole) else values.float(), known, payload)
        received = sent.new_empty(ranks * message.nbytes)

        def read() -> Tensor:
            for rank, own in enumerate(full.view(ranks, -1)):
                payloads = message.payloads(message.row(received, rank), 0)
                for codec, part, payload in zip(codecs, parts, payloads, strict=True):
                    with in_float32(codec, part.of(own).view(-1)) as target:
                        codec.decode(payload, known, target)
            return full

        return _Read(channel.all_gather(received, sent), read)


class _Read(Future[Tensor]):
    """A gather that is read where it is waited for: on a GPU by the stream that waits, to which its memory belongs."""

    def __init__(self, done: Future[Tensor], read: Callable[[], Tensor]) -> None:
        super().__init__()
        self._done, self._read = done, read

    @torch.no_grad()
    def wait(self) -> Tensor:
        """Wait for the messages and decode them; called once."""
        self._done.wait()
        return self._read()


def gatherer_of(name: Literal["none", "int8", "fp8"]) -> Gatherer | None:
    """What `compress.gather` asks for; None where parameters are gathered as they are."""
    return None if name == "none" else CodedGather(_CODECS[name]())
