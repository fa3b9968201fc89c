"""Compressing what a strategy sends, and what that took."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from dynbench.clock import Clock
from dynbench.compress.base import Compressor
from dynbench.compress.feedback import ERROR_COLUMNS, Error, Residuals, exact_mean
from dynbench.plugins import options_of
from dynbench.plugins.compressors import CompressionOptions
from dynbench.runs.columns import COMPRESSES, Column
from dynbench.units import mb
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


COMPRESS_COLUMNS: tuple[Column, ...] = (
    COMPRESSES,
    Column("compress_ms", "number", "ms", "Writing what is sent, error feedback included."),
    Column("decompress_ms", "number", "ms", "Reading what was received and averaging it."),
    Column("extra_collectives", "integer", "", "Collectives beside those that carry what was compressed."),
    Column("extra_collective_ms", "number", "ms", "Time from their calls to their completion."),
    Column("payload_bytes", "integer", "B", "What this rank wrote of gradients, those of small parameters among it."),
    Column("index_bytes", "integer", "B", "Of what this rank wrote, what says which elements are sent."),
    Column("density", "number", "", "Elements sent over elements of what was compressed; none where nothing was."),
    Column("residual_mb", "number", "MB", "Memory of what compression has left out so far."),
)


@dataclass
class Tally:
    """Of the step so far.

    Attributes:
        whole: a gradient was sent as it is because of `start_step`.
    """

    clock: Clock = field(default_factory=Clock)
    whole: bool = False
    _spans: list[tuple[str, object, object]] = field(default_factory=list)
    _extra: int = 0
    _payload_bytes: int = 0
    _index_bytes: int = 0
    _kept: int = 0
    _elements: int = 0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """The time within it counts for a column."""
        start = self.clock.mark()
        yield
        self._spans.append((name, start, self.clock.mark()))

    @contextmanager
    def beside(self, counts: bool = True) -> Iterator[None]:
        """A collective is waited for within, and counts as an extra one, or not."""
        with self.timed("extra_collective_ms") if counts else nullcontext():
            self._extra += counts
            yield

    def wrote(self, nbytes: int) -> None:
        """So many bytes are what is sent first of a gradient."""
        self._payload_bytes += nbytes

    def count(self, elements: int, kept: int, index_bytes: int = 0) -> None:
        """So many of the elements of a parameter are sent, and so many bytes say which."""
        self._elements += elements
        self._kept += kept
        self._index_bytes += index_bytes

    def take_under_way(self) -> Tally:
        """The tally that goes on from this one: with what the device has not done yet, which this one forgets."""
        done = [self.clock.happened(end) for _, _, end in self._spans]
        rest = [span for span, ended in zip(self._spans, done, strict=True) if not ended]
        self._spans = [span for span, ended in zip(self._spans, done, strict=True) if ended]
        return Tally(self.clock, _spans=rest)

    def row(self, residual_bytes: int) -> dict[str, object]:
        """The values of the columns; what was timed must be done."""
        spent = {"compress_ms": 0.0, "decompress_ms": 0.0, "extra_collective_ms": 0.0}
        for name, *span in self._spans:
            spent[name] += self.clock.elapsed_ms(*span)
        return {
            COMPRESSES.name: int(not self.whole),
            **spent,
            "extra_collectives": self._extra,
            "payload_bytes": self._payload_bytes,
            "index_bytes": self._index_bytes,
            "density": self._kept / self._elements if self._elements else None,
            "residual_mb": mb(residual_bytes),
        }


def average(channel: Channel, tensors: Sequence[Tensor]) -> None:
    """Their means over ranks, in place; of one type, and of the same shapes on all ranks."""
    together = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(channel.world_size)
    channel.all_reduce(together).wait()
    for tensor, mean in zip(tensors, torch.split(together, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


class Common(TypedDict, total=False):
    """Arguments that all of them take."""

    error_feedback: bool
    start_step: int
    min_elements: int
    seed: int


class Compressing(Compressor):
    """Knows which parameters are sent as they are, and keeps what compression leaves out of the others.

    Args:
        error_feedback: keep what compression left out and add it to the next gradient.
        start_step: how often every parameter is averaged as it is before anything is compressed.
        min_elements: parameters of fewer elements are always sent as they are.
        seed: of what is drawn, equal on all ranks.
    """

    columns = (*COMPRESS_COLUMNS, *ERROR_COLUMNS)

    def __init__(
        self, *, error_feedback: bool = True, start_step: int = 0, min_elements: int = 1024, seed: int = 0
    ) -> None:
        super().__init__()
        self.error_feedback = error_feedback
        self.start_step, self.min_elements, self.seed = start_step, min_elements, seed
        self._residuals = Residuals()
        self._steps: dict[str, int] = {}
        self._tally, self._error = Tally(), Error()
        self.error_every = 0
        """Of how many averages of a parameter the error of one is measured; 0 measures none."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """The mean over ranks of `flat`, shape [n], in place; equal to the bit on all ranks."""
        exact = exact_mean(channel, flat) if self._is_measured(segments) else None
        self._mean(channel, flat, segments)
        if exact is not None:
            self._error.add(exact, flat)

    def mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """This rank's part of that mean into `shard`, shape [n/G]."""
        exact = exact_mean(channel, flat) if self._is_measured(segments) else None
        self._mean_shard(channel, flat, segments, shard)
        if exact is not None:
            self._error.add(exact.view(channel.world_size, -1)[channel.rank], shard.view(-1), channel.group)

    @abstractmethod
    def _mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """As `mean`."""

    def _mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """As `mean_shard`; where it is no less work, cut from the whole mean."""
        self._mean(channel, flat, segments)
        shard.view(-1).copy_(flat.view(channel.world_size, -1)[channel.rank])

    def _is_measured(self, segments: Sequence[Segment]) -> bool:
        return self.error_every > 0 and any(self._step(each.name) % self.error_every == 0 for each in segments[:1])

    def configured(self, settings: Compress | None) -> None:
        """Take what the `compress` section says of all of them; None is the defaults."""
        options = options_of(settings, CompressionOptions)
        self.settings = settings
        self.start_step, self.min_elements, self.seed = options.start_step, options.min_elements, options.shared_seed
        self.error_every = options.error_every

    def _compressed(self, segments: Iterable[Segment]) -> set[str]:
        """Names of the parameters that are not sent as they are this time."""
        found = set()
        for segment in segments:
            late = self._step(segment.name) < self.start_step
            self._tally.whole |= late
            if not late and segment.numel >= max(1, self.min_elements):
                found.add(segment.name)
        return found

    def _step(self, name: str) -> int:
        """How often a parameter was averaged."""
        return self._steps.get(name, 0)

    def _done(self, segments: Iterable[Segment]) -> None:
        """They have been, once more."""
        for segment in segments:
            self._steps[segment.name] = self._step(segment.name) + 1

    @property
    def residual_bytes(self) -> int:
        """Memory of what was left out so far."""
        return self._residuals.nbytes

    def row(self) -> Mapping[str, object]:
        """Of the step that ended."""
        tally = self._tally
        self._tally = tally.take_under_way()
        error, self._error = self._error, Error()
        norm = self._residuals.norm() if error.measured else 0.0
        return {**tally.row(self.residual_bytes), **error.row(norm)}

    def state_dict(self) -> dict[str, Tensor]:
        """What this rank has not sent yet, by stage and parameter."""
        return {f"residual.{name}": kept for name, kept in self._residuals.kept.items()}


def asked_feedback(settings: Compress | None, usual: bool) -> bool:
    """Whether what is left out is kept: as the settings say, or as is usual."""
    asked = options_of(settings, CompressionOptions).error_feedback
    return usual if asked == "auto" else asked
