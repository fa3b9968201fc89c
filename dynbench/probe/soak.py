"""The soak: the real dynamic plan replayed at the capacities found, and capacities lowered until it passes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from dynbench.errors import NothingFits, UsageError
from dynbench.probe.capacity import Report, StartChildren, capacity_tables
from dynbench.probe.children import Reply
from dynbench.runs.probe_record import CapacityRow, MemoryFit, Soak
from dynbench.schedule.capacity import capacity_of
from dynbench.schedule.evaluate import largest_fitting
from dynbench.schedule.planner import Planner
from dynbench.schedule.policy import Problem, make_policy

log = logging.getLogger(__name__)

SHRINK = 0.9
"""What is left of the capacities of a rank that ran out of memory, where it is not known how much was lacking."""
LEAST_STEP = 0.05
"""Part of them that it loses at least, as peaks of one plan differ by some per cent."""
LEAST_LEFT = 0.4
MAX_SHRINKS = 10


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
        report: told what happens.
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
    if reply is None:
        found = [row for row in rows if row.tested_fail is None]
        lowered = list(rows)
    else:
        found = [row for row in rows if row.tested_fail is None and row.length >= reply["length"]]
        lowered = found or [row for row in rows if row.tested_fail is not None]
    after = []
    for row in rows:
        if row in lowered:
            n = row.max_batch if reply is None else reply["n"]
            alone_failed = reply is not None and n == 1 and reply["length"] <= row.length
            least = 1 if row.tested_ok >= 1 and not alone_failed else 0
            if row in found:
                most = int(min(row.max_batch, n) * min(part, 1 - margin))
                row = row.model_copy(update={"max_batch": max(least, most), "tested_fail": n})
            else:
                row = row.model_copy(update={"max_batch": max(least, int(row.max_batch * part))})
        after.append(row)
    return after


def _dealt(shapes: list[list[tuple[int, int]]], processes: int) -> list[list[tuple[int, int]]]:
    """Each rank's micro-batches to its process; one process plays all virtual ranks, step by step."""
    if processes == len(shapes):
        return shapes
    return [[shape for step in zip_longest(*shapes) for shape in step if shape is not None]]


def _outcome(steps: int, replies: Sequence[Reply | None], shrunk: int, global_batch: int) -> Soak:
    """Of a replay that passed, with what the ranks answered; of one that never did, with no answers."""

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
