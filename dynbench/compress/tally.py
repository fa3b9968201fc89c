"""What compression did in a step: columns of a rank's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from dynbench.clock import Clock, HostClock
from dynbench.runs.columns import COMPRESSES, Column
from dynbench.units import mb

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

    clock: Clock = field(default_factory=HostClock)
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
