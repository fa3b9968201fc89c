"""Capacities from trials: searched, tabulated, and replayed in the soak.

The search is bookkeeping: whoever runs the trials asks `next_trial` and answers with `record`. A trial that ended
without an answer is simply not recorded, and comes again. The soak replays the real dynamic plan at the
capacities found, which are lowered until it passes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, takewhile, zip_longest
from typing import Any

from dynbench.config.schema import Probe
from dynbench.errors import NothingFits, UsageError
from dynbench.probe.children import Children, Reply, Report, StartChildren
from dynbench.probe.fit import between, peak_mb
from dynbench.runs.probe_record import CapacityRow, MemoryFit, Soak, TrialRow
from dynbench.schedule.capacity import capacity_of
from dynbench.schedule.evaluate import largest_fitting
from dynbench.schedule.policy import Planner, Problem, make_policy

log = logging.getLogger(__name__)

STEP_TOKENS = 8
"""The table has lengths between the probed ones at multiples of this."""
SHRINK = 0.9
"""What is left of the capacities of a rank that ran out of memory, where it is not known how much was lacking."""
LEAST_STEP = 0.05
"""Part of them that it loses at least, as peaks of one plan differ by some per cent."""
LEAST_LEFT = 0.4
MAX_SHRINKS = 10


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
    lengths = sorted(capacity_by_length)
    return dict(zip(lengths, accumulate((capacity_by_length[length] for length in lengths), min), strict=True))


def length_grid(max_length: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Lengths to probe, ascending: those given, else 32, 64, … doubled up to and with `max_length`."""
    if given is not None:
        return tuple(sorted(set(given)))
    doubled = takewhile(lambda length: length < max_length, (32 * 2**exponent for exponent in count()))
    return (*doubled, max_length)


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


def find_capacities(
    start: StartChildren, lengths: Sequence[int], world_size: int, ceiling: int, settings: Probe, report: Report
) -> tuple[list[CapacityRow], list[TrialRow]]:
    """The largest micro-batch of every rank at every length, and the trials.

    Args:
        start: starts a fresh group of trial processes; one group per length, so that no search inherits another's
            fragmented memory.
        lengths: padded lengths, tokens.
        world_size: ranks, all probed at one time since contention is real.
        ceiling: largest share that a step can ask of one rank, samples; nothing above it is tried.
        settings: gap, margin and tries.
        report: called with what is being tried.

    Raises:
        WorkerFailed: a trial kept ending without an answer.
    """
    rows: list[CapacityRow] = []
    trials: list[TrialRow] = []
    begin = [1] * world_size
    tested: dict[int, list[CapacitySearch]] = {}
    for length in sorted(lengths, reverse=True):
        searches = [CapacitySearch(start=first, ceiling=ceiling, gap=settings.gap) for first in begin]
        _search_length(start, length, searches, settings.trials, trials, report)
        tested[length] = searches
        begin = [max(1, 2 * search.largest_ok) for search in searches]
    peaks = {(trial.rank, trial.length, trial.n): trial.peak_mem_mb for trial in trials if trial.fits}
    for rank in range(world_size):
        usable = monotone({length: searches[rank].largest_ok for length, searches in tested.items()})
        shorter_fail: int | None = None
        for length in sorted(tested):
            search = tested[length][rank]
            failed = search.smallest_fail or shorter_fail
            shorter_fail = min(filter(None, (shorter_fail, failed)), default=None)
            most = usable[length] if failed is None else with_margin(usable[length], settings.margin)
            rows.append(
                CapacityRow(
                    rank=rank,
                    length=length,
                    max_batch=most,
                    tested_ok=search.largest_ok,
                    tested_fail=failed,
                    peak_mem_mb=peaks.get((rank, length, search.largest_ok)),
                )
            )
    return rows, trials


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
                sizes = [search.next_trial() or 0 for search in searches]
                counts = str(sizes[0]) if len(set(sizes)) == 1 else "/".join(map(str, sizes))
                report(f"{length} tokens: trying {counts} samples")
                replies = children.ask([{"op": "trial", "n": n, "length": length} for n in sizes])
                if not _all_there(children, replies):
                    indeterminate += 1
                    log.warning(
                        "probe: a trial process ended without an answer at %s x %d tokens (try %d of %d); starting "
                        "again: if the system's memory killer did it, lower --memory-limit",
                        *(counts, length, indeterminate, tries),
                    )
                    if indeterminate >= tries:
                        what = f"trials of {counts} samples of {length} tokens ended {tries} times without an answer"
                        hint = "Lower --memory-limit or --memory-fraction, or see the log."
                        raise children.failed(children.gone[0], what, hint)
                    break
                indeterminate = 0
                for rank, (search, n, reply) in enumerate(zip(searches, sizes, replies, strict=True)):
                    if n and reply is not None:
                        trials.append(TrialRow(rank=rank, length=length, n=n, **reply))
                        search.record(n, trials[-1].fits)


def _all_there(children: Children, replies: Sequence[Reply | None]) -> bool:
    """Whether every rank answered, and then met the others, with the memory of its strategy still in use."""
    return None not in replies and None not in children.ask_all({"op": "meet"}, collective=True)


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


def planned_shapes(problem: Problem, steps: int) -> list[list[tuple[int, int]]]:
    """Per rank, the (samples, padded length) of every micro-batch of `partition`'s first steps, in order.

    Of a packed row, as many of its longest sample as it has tokens for, rounded up; trials make of these the row that
    needs most memory.
    """
    shapes: list[list[tuple[int, int]]] = [[] for _ in range(problem.workers)]
    planner = Planner("partition", problem)
    for step in range(steps):
        for rank, share in enumerate(planner.plan(step).shares):
            for ids in share:
                longest, tokens = int(problem.padded_lengths[ids].max()), int(problem.lengths[ids].sum())
                shapes[rank].append((-(-tokens // longest) if problem.packed else len(ids), longest))
    return shapes


def soak(
    start: StartChildren,
    problem: Problem,
    rows: Sequence[CapacityRow],
    model: MemoryFit | None,
    steps: int,
    report: Report,
    limit_mb: float | None = None,
    margin: float = 0.0,
) -> tuple[Soak | None, list[CapacityRow]]:
    """Replay the plan, lowering the capacities of a rank that runs out of memory, and replay again.

    Args:
        start: starts a fresh group of trial processes.
        problem: the run's problem; its capacity is replaced by the one tried.
        rows: the capacities found.
        model: answers the lengths between the probed ones.
        steps: steps of the plan to replay.
        report: called with what happens.
        limit_mb: of a trial process; None where it is not known in MB.
        margin: what capacities leave of what was tested; those at which no limit had been found get theirs when one is.

    Returns:
        The outcome, None where the capacities cannot hold the plan at all, and the capacities that passed.
    """
    rows = list(rows)
    processes = 1 + max(row.rank for row in rows)
    for shrunk in range(MAX_SHRINKS + 1):
        try:
            tables = capacity_tables(rows, model, processes)
            planned = _that_fits(replace(problem, capacity=capacity_of(tables, problem.layout)), steps)
            shapes = planned_shapes(planned, steps)
        except (NothingFits, UsageError) as error:
            log.warning("probe: no soak: %s", error.message)
            return None, rows
        report(f"soak: replaying {steps} steps of the plan")
        with start() as children:
            replies = children.ask([{"op": "soak", "micro_batches": shape} for shape in _dealt(shapes, processes)])
        failed = [rank for rank, reply in enumerate(replies) if reply is None or not reply["ok"]]
        if not failed:
            return _outcome(steps, replies, shrunk, planned.global_batch), rows
        parts = {rank: _part_left(replies[rank], model, limit_mb, shrunk) for rank in failed}
        log.warning(
            "probe: the soak ran out of memory on rank %s; lowering capacities and trying again",
            ", ".join(map(str, failed)),
        )
        for rank, part in parts.items():
            lowered = _lowered([row for row in rows if row.rank == rank], replies[rank], part, margin)
            rows = [row for row in rows if row.rank != rank] + lowered
        rows.sort(key=lambda row: (row.rank, row.length))
    return _outcome(steps, (), MAX_SHRINKS, planned.global_batch), rows


def _that_fits(problem: Problem, steps: int) -> Problem:
    """The problem, with fewer samples per step where the capacities cannot hold all of its steps.

    Raises:
        NothingFits: no number of samples can be planned.
    """
    misfit = make_policy("partition", problem).misfit(steps)
    if misfit is None:
        return problem
    fitting = largest_fitting("partition", problem, steps)
    if fitting is None:
        raise misfit
    return replace(problem, global_batch=fitting.global_batch)


def _part_left(reply: Reply | None, model: MemoryFit | None, limit_mb: float | None, shrunk: int) -> float:
    """What of its capacities a rank keeps.

    By as much as its peak, less what any step needs, was above the limit, and no less than `LEAST_STEP`; from the third
    time on by more, as the plan may not have come near its capacities. Where that is not known, every time less is left
    than the time before: a replay takes as long as training so many steps.
    """
    peak = (reply or {}).get("peak_mem_mb") or 0.0
    if model is None or limit_mb is None or peak <= limit_mb:
        return max(LEAST_LEFT, SHRINK ** (1 + shrunk))
    left = (limit_mb - model.fixed_mb) / (peak - model.fixed_mb)
    return max(LEAST_LEFT, min(1 - LEAST_STEP, left) * SHRINK ** max(0, shrunk - 1))


def _lowered(rows: Sequence[CapacityRow], reply: Reply | None, part: float, margin: float) -> list[CapacityRow]:
    """The rows of a rank that ran out of memory.

    Where no limit had been found for what failed, there is one now: capacities from its length on get the margin that
    the others have, or less, and the others keep theirs. A process that ended without an answer says nothing of what
    failed: every row counts as having failed. One sample that passed its trial is left, unless one sample no longer
    than these is what failed.
    """
    since = 0 if reply is None else reply["length"]
    found = [row for row in rows if row.tested_fail is None and row.length >= since]
    lowered = rows if reply is None else found or [row for row in rows if row.tested_fail is not None]
    after = []
    for row in rows:
        if row in lowered:
            n = row.max_batch if reply is None else reply["n"]
            alone_failed = reply is not None and n == 1 and since <= row.length
            least = 1 if row.tested_ok >= 1 and not alone_failed else 0
            change: dict[str, int] = {"max_batch": int(row.max_batch * part)}
            if row in found:
                change = {"max_batch": int(min(row.max_batch, n) * min(part, 1 - margin)), "tested_fail": n}
            row = row.model_copy(update={**change, "max_batch": max(least, change["max_batch"])})
        after.append(row)
    return after


def _dealt(shapes: list[list[tuple[int, int]]], processes: int) -> list[list[tuple[int, int]]]:
    """Each rank's micro-batches to its process; one process plays all virtual ranks, step by step."""
    if processes == len(shapes):
        return shapes
    return [[shape for step in zip_longest(*shapes) for shape in step if shape is not None]]


def _outcome(steps: int, replies: Sequence[Reply | None], shrunk: int, global_batch: int) -> Soak:
    """Of a replay that passed, with the replies of the ranks; of one that never did, with none."""

    def largest(key: str) -> Any:
        return max((reply[key] for reply in replies if reply and reply[key] is not None), default=None)

    return Soak(
        steps=steps,
        ok=bool(replies),
        peak_mem_mb=largest("peak_mem_mb"),
        reserved_mem_mb=largest("reserved_mem_mb"),
        allocator_retries=largest("allocator_retries"),
        shrunk=shrunk,
        global_batch=global_batch,
    )
