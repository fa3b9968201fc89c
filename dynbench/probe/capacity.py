"""Capacities of all ranks: one search per rank and length, all ranks in lock-step, the longest length first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from dynbench.config.schema import Probe
from dynbench.errors import NothingFits, WorkerFailed
from dynbench.probe.children import Children, Reply
from dynbench.probe.search import CapacitySearch, monotone, with_margin
from dynbench.runs.probe_record import CapacityRow, TrialRow

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
