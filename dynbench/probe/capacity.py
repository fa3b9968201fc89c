"""Capacities from trials: searched, tabulated.

Pure bookkeeping, no processes: whoever runs the trials asks `next_trial` and answers with `record`. A trial that ended
without an answer is simply not recorded, and is asked for again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from dynbench.config.schema import Probe
from dynbench.errors import NothingFits, WorkerFailed
from dynbench.probe.children import Children, Reply
from dynbench.probe.fit import between, peak_mb
from dynbench.runs.probe_record import CapacityRow, MemoryFit, TrialRow

STEP_TOKENS = 8
"""Lengths between the probed ones are answered at multiples of this."""


@dataclass
class CapacitySearch:
    """One rank's search at one length.

    Args:
        start: first micro-batch to try, samples; the answer at the next longer length is a good one.
        ceiling: largest micro-batch worth knowing, samples; what a global batch can ask of one rank.
        gap: the search ends when the failure is within this part of the success, or one more than it.
    """

    start: int = 1
    ceiling: int = 2**20
    gap: float = 0.05
    largest_ok: int = 0
    smallest_fail: int | None = None
    trials: list[tuple[int, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = min(max(self.start, 1), self.ceiling)

    @property
    def done(self) -> bool:
        """Whether the answer is known to within the gap."""
        if self.largest_ok >= self.ceiling or self.smallest_fail == 1:
            return True
        if self.smallest_fail is None or self.largest_ok == 0:
            return False
        distance = self.smallest_fail - self.largest_ok
        return distance <= max(1, math.floor(self.gap * self.largest_ok))

    def next_trial(self) -> int | None:
        """Samples to try next; None when done."""
        if self.done:
            return None
        if self.smallest_fail is None:
            return min(max(self.start, 2 * self.largest_ok), self.ceiling)
        if self.largest_ok == 0:
            return max(1, self.smallest_fail // 2)
        return (self.largest_ok + self.smallest_fail) // 2

    def record(self, n: int, fits: bool) -> None:
        """The answer of a trial of `n` samples.

        A failure below an earlier success (a fragmented allocator, say) takes that success back: what is reported as
        fitting must fit every time.
        """
        self.trials.append((n, fits))
        if fits:
            if self.smallest_fail is None or n < self.smallest_fail:
                self.largest_ok = max(self.largest_ok, n)
            return
        self.smallest_fail = n if self.smallest_fail is None else min(self.smallest_fail, n)
        if self.largest_ok >= n:
            passed = [count for count, ok in self.trials if ok and count < n]
            self.largest_ok = max(passed, default=0)


def with_margin(tested_ok: int, margin: float) -> int:
    """What is left of a tested micro-batch after the safety margin; never below 1 where one sample fits."""
    return max(1, math.floor(tested_ok * (1.0 - margin))) if tested_ok > 0 else 0


def monotone(capacity_by_length: Mapping[int, int]) -> dict[int, int]:
    """Capacities made non-increasing in length: a longer sequence never holds more samples than a shorter one.

    A violation is lowered, never raised, so the result holds only what was tested to fit.
    """
    repaired: dict[int, int] = {}
    lowest: int | None = None
    for length in sorted(capacity_by_length):
        lowest = capacity_by_length[length] if lowest is None else min(lowest, capacity_by_length[length])
        repaired[length] = lowest
    return repaired


def length_grid(max_length: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Lengths to probe, ascending: those given, else 32, 64, … doubled up to and with `max_length`."""
    if given is not None:
        return tuple(sorted(set(given)))
    grid = []
    length = 32
    while length < max_length:
        grid.append(length)
        length *= 2
    return (*grid, max_length)


Table = list[tuple[int, int | None]]
"""(length, largest micro-batch) by ascending length; None where no limit was found."""


def capacity_tables(rows: Sequence[CapacityRow], model: MemoryFit | None, world_size: int) -> list[Table]:
    """Per rank, (length, largest micro-batch) by ascending length, where at least one sample fits.

    Between probed lengths the memory model answers, against the peak it predicts for what passed at the probed ones:
    never more than was usable at the next shorter probed length, never less than at the next longer. Up to the longest
    probed length at which nothing failed there is no limit, and what the model says beyond it is not cut to the sizes
    that were tried there.
    """
    return [_table([row for row in rows if row.rank == rank], model) for rank in range(world_size)]


def _table(rows: Sequence[CapacityRow], model: MemoryFit | None) -> Table:
    limited = monotone({row.length: row.max_batch for row in rows if row.tested_fail is not None})
    capacity = {row.length: limited.get(row.length) for row in rows}
    bound = [row for row in rows if limited.get(row.length)]
    limit_mb = min((peak_mb(model, row.max_batch, row.length) for row in bound), default=0.0) if model else 0.0
    lengths = {length for length in range(STEP_TOKENS, max(capacity) + 1, STEP_TOKENS) if length > min(capacity)}
    table = [(length, between(model, length, limit_mb, capacity)) for length in sorted(lengths | set(capacity))]
    return [(length, n) for length, n in table if n != 0]


log = logging.getLogger(__name__)

StartChildren = Callable[[], AbstractContextManager[Children]]
Report = Callable[[str], None]


@dataclass
class ProbedCapacities:
    """What the searches found."""

    rows: list[CapacityRow] = field(default_factory=list)
    trials: list[TrialRow] = field(default_factory=list)

    def tables(self, world_size: int) -> list[list[tuple[int, int]]]:
        """Per rank, (length, max_batch) by ascending length."""
        return [
            sorted((row.length, row.max_batch) for row in self.rows if row.rank == rank) for rank in range(world_size)
        ]


def find_capacities(
    start: StartChildren, lengths: Sequence[int], world_size: int, ceiling: int, settings: Probe, report: Report
) -> ProbedCapacities:
    """The largest micro-batch of every rank at every length.

    Args:
        start: starts a fresh group of trial processes; one group per length, so that no search inherits another's
            fragmented memory.
        lengths: padded lengths, tokens.
        world_size: ranks, all probed together since contention is real.
        ceiling: largest share that a step can ask of one rank, samples; nothing above it is tried.
        settings: gap, margin and tries.
        report: told what is being tried.

    Raises:
        WorkerFailed: a trial kept ending without an answer.
    """
    found = ProbedCapacities()
    begin = [1] * world_size
    tested: dict[int, list[CapacitySearch]] = {}
    for length in sorted(lengths, reverse=True):
        searches = [CapacitySearch(start=begin[rank], ceiling=ceiling, gap=settings.gap) for rank in range(world_size)]
        _search_length(start, length, searches, settings.trials, found.trials, report)
        tested[length] = searches
        begin = [max(1, 2 * search.largest_ok) for search in searches]
    peaks = {(trial.rank, trial.length, trial.n): trial.peak_mem_mb for trial in found.trials if trial.fits}
    for rank in range(world_size):
        usable = monotone({length: searches[rank].largest_ok for length, searches in tested.items()})
        shorter_fail: int | None = None
        for length in sorted(tested):
            search = tested[length][rank]
            failed = search.smallest_fail or shorter_fail
            shorter_fail = min(filter(None, (shorter_fail, failed)), default=None)
            found.rows.append(
                CapacityRow(
                    rank=rank,
                    length=length,
                    max_batch=usable[length] if failed is None else with_margin(usable[length], settings.margin),
                    tested_ok=search.largest_ok,
                    tested_fail=failed,
                    peak_mem_mb=peaks.get((rank, length, search.largest_ok)),
                )
            )
    return found


def _search_length(
    start: StartChildren,
    length: int,
    searches: Sequence[CapacitySearch],
    tries: int,
    trials: list[TrialRow],
    report: Report,
) -> None:
    """Run all ranks' searches at one length, replacing the processes when one ends without an answer."""
    indeterminate = 0
    while not all(search.done for search in searches):
        with start() as children:
            while not all(search.done for search in searches):
                asked = [search.next_trial() or 0 for search in searches]
                report(f"{length} tokens: trying {_counts(asked)} samples")
                replies = children.ask([{"op": "trial", "n": n, "length": length} for n in asked])
                if not _met(children, replies):
                    indeterminate += 1
                    _warn_of_try(indeterminate, tries, length, asked)
                    if indeterminate >= tries:
                        raise _unanswered(tries, length, asked, children)
                    break
                indeterminate = 0
                for rank, (search, n, reply) in enumerate(zip(searches, asked, replies, strict=True)):
                    if n and reply is not None:
                        trials.append(TrialRow(rank=rank, length=length, n=n, **reply))
                        search.record(n, trials[-1].fits)


def _met(children: Children, replies: Sequence[Reply | None]) -> bool:
    """Whether every rank answered, and then met the others, with what its strategy holds still in place."""
    if any(reply is None for reply in replies):
        return False
    return all(reply is not None for reply in children.ask_all({"op": "meet"}, together=True))


def _warn_of_try(number: int, tries: int, length: int, asked: Sequence[int]) -> None:
    log.warning(
        "probe: a trial process ended without an answer at %s x %d tokens (try %d of %d); starting again: "
        "if the system's memory killer did it, lower --memory-limit",
        _counts(asked),
        length,
        number,
        tries,
    )


def _unanswered(tries: int, length: int, asked: Sequence[int], children: Children) -> WorkerFailed:
    tried = f"{_counts(asked)} samples of {length} tokens"
    what = f"trials of {tried} ended {tries} times without an answer"
    return children.gone_without_answer(what, "Lower --memory-limit or --memory-fraction, or see the log.")


def _counts(asked: Sequence[int]) -> str:
    return str(asked[0]) if len(set(asked)) == 1 else "/".join(map(str, asked))


def refuse_if_nothing_fits(capacity: Sequence[CapacityRow]) -> None:
    """Not one sample fitting is an answer, but no run can use it.

    Raises:
        NothingFits: names the rank, the length, and the longest length that fits.
    """
    for row in capacity:
        if row.max_batch == 0:
            fitting = [other.length for other in capacity if other.rank == row.rank and other.max_batch]
            shorter = f"{max(fitting)} tokens fit" if fitting else "no probed length fits"
            raise NothingFits(
                f"probe: not one sample of {row.length} tokens fits on rank {row.rank}; {shorter}",
                "Lower workload.max_length, take a smaller model, or raise the memory limit.",
            )
