"""What was sent over a wire since the last call of `take`: calls, bytes and times, by logical operation."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from dynbench.clock import NS_PER_MS, Clock
from dynbench.runs.records import EVERYONE, Call

SENT: Mapping[str, Callable[[int, int], int]] = {
    "all_reduce": lambda size, ranks: 2 * (ranks - 1) * size // ranks,
    "reduce_scatter": lambda size, ranks: (ranks - 1) * size // ranks,
    "all_gather": lambda size, ranks: (ranks - 1) * size,
    "all_to_all": lambda size, ranks: (ranks - 1) * size // ranks,
    "broadcast": lambda size, ranks: (ranks - 1) * size // ranks,
    "send": lambda size, ranks: size,
    "receive": lambda size, ranks: 0,
}
"""Bytes that one of `ranks` ranks sends when each hands in `size` bytes.

Of the bandwidth-optimal algorithms: a ring for all-reduce, reduce-scatter and all-gather (Patarasuk and Yuan, J.
Parallel Distrib. Comput. 69, 2009), where an all-gather is handed a rank's own part; a broadcast, which some ranks pass
on and some do not, as the mean over ranks.
"""


Compressed = Literal["gradient", "gathered"]
"""What may travel in fewer bytes: means of gradients, and shards of parameters that are gathered."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Everything since the last time."""

    bytes_raw: int
    """What the strategy handed to the wire, before anything was compressed."""
    gradient_raw: int = 0
    """What this rank would have sent of gradients that it averaged, had they been sent as they are, see `SENT`."""
    gradient_wire: int = 0
    """What it sent of these."""
    gathered_raw: int = 0
    """What it would have sent of shards that were gathered in fewer bytes, had they been sent as they are."""
    gathered_wire: int = 0
    """What it sent of these."""
    calls: Sequence[Call] = ()
    """All calls, in their order."""

    @property
    def bytes_wire(self) -> int:
        """What this rank sent."""
        return sum(call.bytes_wire for call in self.calls)

    @property
    def bytes_uncompressed(self) -> int:
        """What it would have sent, had nothing been compressed."""
        saved = self.gradient_raw - self.gradient_wire + self.gathered_raw - self.gathered_wire
        return self.bytes_wire + saved

    @property
    def sum_ms(self) -> float:
        """Sum over calls of the time each was under way; calls that overlap count each."""
        return sum(call.end_ns - call.start_ns for call in self.calls) / NS_PER_MS

    @property
    def busy_ms(self) -> float:
        """Time in which at least one call was under way."""
        return union_ms((call.start_ns, call.end_ns) for call in self.calls)


@dataclass(slots=True, eq=False)
class Entry:
    """One call of an operation."""

    operation: str
    peer: int
    number: int
    bytes_in: int
    bytes_wire: int
    compressed: Compressed | None
    start: object
    end: object | None = None


@dataclass(eq=False)
class Ledger:
    """Keeps the calls of a channel; used from the threads that call and from those that complete.

    Args:
        clock: of the channel's device.
    """

    clock: Clock
    _entries: list[Entry] = field(default_factory=list)
    _bytes_raw: int = 0
    _raw_of: Counter[Compressed] = field(default_factory=Counter)
    _here: threading.local = field(default_factory=threading.local)
    _numbers: Counter[tuple[str, int]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hand_in(self, size: int) -> None:
        """A strategy gives the wire so many bytes."""
        with self._lock:
            self._bytes_raw += size

    @contextmanager
    def in_place_of(self, what: Compressed, operation: str, size: int, ranks: int) -> Iterator[None]:
        """What this thread calls within does what `operation` of `size` bytes would."""
        with self._lock:
            self._raw_of[what] += SENT[operation](size, ranks)
        self._here.compressed = what
        try:
            yield
        finally:
            self._here.compressed = None

    def begin(self, operation: str, size: int, ranks: int, peer: int = EVERYONE) -> Entry:
        """An operation is called with so many bytes, of a send or receive with the other rank."""
        among = "everyone" if peer == EVERYONE else operation, peer
        compressed, sent = getattr(self._here, "compressed", None), SENT[operation](size, ranks)
        with self._lock:
            entry = Entry(operation, peer, self._numbers[among], size, sent, compressed, self.clock.mark())
            self._numbers[among] += 1
            self._entries.append(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """It is complete, or on CUDA its completion is what the current stream waits for."""
        entry.end = self.clock.mark()

    @property
    def idle(self) -> bool:
        """Whether everything that was called since the last `take` is complete."""
        with self._lock:
            return all(entry.end is not None for entry in self._entries)

    def take(self) -> Traffic:
        """What is complete since the last call. The rest comes next time."""
        with self._lock:
            done = [entry for entry in self._entries if entry.end is not None and self.clock.happened(entry.end)]
            taken = set(map(id, done))
            self._entries = [entry for entry in self._entries if id(entry) not in taken]
            raw, self._bytes_raw = self._bytes_raw, 0
            raw_of, self._raw_of = self._raw_of, Counter()
        to_ns = self.clock.to_host_ns()
        calls = [
            Call(entry.operation, entry.peer, entry.number, entry.bytes_wire, to_ns(entry.start), to_ns(entry.end))
            for entry in done
        ]
        wire_of: Counter[Compressed] = Counter()
        for entry in done:
            if entry.compressed is not None:
                wire_of[entry.compressed] += entry.bytes_wire
        return Traffic(raw, raw_of["gradient"], wire_of["gradient"], raw_of["gathered"], wire_of["gathered"], calls)


class Spans:
    """Intervals by name; nothing waits for the device.

    Args:
        clock: whose marks they are between.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._spans: list[tuple[str, object, object]] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time a block; those of one name add up."""
        start = self.clock.mark()
        yield
        self._spans.append((name, start, self.clock.mark()))

    def take_ms(self) -> defaultdict[str, float]:
        """Milliseconds by name of what has ended since the last call, 0 for any other; the rest comes next time."""
        done = [self.clock.happened(end) for _, _, end in self._spans]
        total: defaultdict[str, float] = defaultdict(float)
        for (name, start, end), ended in zip(self._spans, done, strict=True):
            total[name] += self.clock.elapsed_ms(start, end) if ended else 0.0
        self._spans = [span for span, ended in zip(self._spans, done, strict=True) if not ended]
        return total


def union_ms(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals (start, end) in nanoseconds."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / NS_PER_MS
