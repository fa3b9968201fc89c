"""Pairs of launches: which launch of one arm is compared with which of another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from dynbench.analysis.arms import Arm
from dynbench.analysis.merge import MergedRun

Pair = tuple[MergedRun, MergedRun]


@dataclass(frozen=True)
class Pairing:
    """The pairs of two arms.

    Attributes:
        pairs: baseline's launch and candidate's, in the order in which the baseline's started.
        left_out: launches that are in no pair, each with the reason.
    """

    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]


def pair_launches(baseline: Arm, candidate: Arm, *, partial: bool = False) -> Pairing:
    """Pairs runs that took turns in one launch, and of the others launches of equal seed that follow each other.

    Arms that never shared a launch are paired as if they had been launched apart.

    In ABBA order (the arms in order, then reversed, repeated) these are the launches of one block. A launch that is
    partial or gone takes its partner with it, and no other pair changes: shifted pairs would lie further apart, all in
    the same direction, and a drift of the machine would become a difference of the arms. `compare` gives the launches
    of a block a seed of their own, so that they pair whenever they ran.

    Args:
        baseline: the arm compared with.
        candidate: the arm compared.
        partial: keep pairs with a partial launch, as long as it has a measured step, instead of leaving them out.
    """
    launches = (*baseline.runs, *candidate.runs)
    pairs = _of_one_launch(baseline.runs, candidate.runs)
    shared = {run.run.id for pair in pairs for run in pair}
    usable = {run.run.id for run in launches if run.measured.height and (partial or not run.partial)}
    for seed in dict.fromkeys(run.facts.seed for run in launches):
        arms = [
            [run for run in arm.runs if run.facts.seed == seed and (not shared or run.facts.together is None)]
            for arm in (baseline, candidate)
        ]
        pairs += _of_one_seed(arms[0], arms[1], usable)
    partners = {run.run.id: other for pair in pairs for run, other in (pair, pair[::-1])}
    kept = sorted(_whole(pairs, usable), key=lambda pair: pair[0].facts.started)
    paired = {run.run.id for pair in kept for run in pair}
    left_out = [
        _reason(run, partners.get(run.run.id), run.run.id in usable)
        for run in launches
        if run.run.id not in paired and not _is_with_others(run, pairs, shared)
    ]
    return Pairing(tuple(kept), tuple(left_out))


def _is_with_others(run: MergedRun, pairs: Sequence[Pair], shared: Collection[str]) -> bool:
    """Whether a run is in a launch shared with other arms, and its arm has another run of its block that is paired."""
    paired = {one.facts.seed for pair in pairs for one in pair}
    return run.facts.together is not None and run.run.id not in shared and run.facts.seed in paired


def _reason(run: MergedRun, partner: MergedRun | None, usable: bool) -> str:
    if not usable:
        return f"{run.label} is partial ({'; '.join(run.lacks)})"
    if partner is None:
        return f"{run.label} has no partner with seed {run.facts.seed}"
    return f"{run.label} ran beside {partner.label}, which is partial"


def _of_one_launch(first: Sequence[MergedRun], second: Sequence[MergedRun]) -> list[Pair]:
    """Pairs of two arms' runs that shared a launch, partial ones among them."""
    launches = dict.fromkeys(run.facts.together for run in first if run.facts.together is not None)
    sides = [[[run for run in arm if run.facts.together == launch] for arm in (first, second)] for launch in launches]
    return [pair for one, other in sides for pair in zip(one, other, strict=False)]


def _of_one_seed(first: Sequence[MergedRun], second: Sequence[MergedRun], usable: Collection[str]) -> list[Pair]:
    """Pairs of two arms' launches, partial ones in their places.

    A whole launch left without a partner may repeat a partial one: then the partial ones lose their places where that
    gives more pairs.
    """
    pairs = _couples(first, second)
    paired = {run.run.id for pair in pairs for run in pair}
    if all(run.run.id in paired or run.run.id not in usable for run in (*first, *second)):
        return pairs
    repeated = _couples(*([run for run in arm if run.run.id in usable] for arm in (first, second)))
    return repeated if len(repeated) > len(_whole(pairs, usable)) else pairs


def _whole(pairs: Sequence[Pair], usable: Collection[str]) -> list[Pair]:
    return [pair for pair in pairs if all(run.run.id in usable for run in pair)]


def _couples(first: Sequence[MergedRun], second: Sequence[MergedRun]) -> list[Pair]:
    """Launches of two arms paired in order, so that as many as can be have a partner and the least time lies between.

    Arms that took turns pair with neighbours only. Where most launches have no neighbour of the other arm, the arms ran
    one after the other, and pairs lie as far apart as they must.
    """
    starts = [np.array([_started_s(run) for run in arm]) for arm in (first, second)]
    apart = np.abs(np.subtract.outer(*starts))
    places = np.argsort(np.argsort(np.concatenate(starts), kind="stable"), kind="stable")
    beside = np.abs(np.subtract.outer(places[: len(first)], places[len(first) :])) == 1
    near = _match(np.where(beside, apart, np.inf))
    couples = near if 2 * len(near) > min(len(first), len(second)) else _match(apart)
    return [(first[row], second[column]) for row, column in couples]


def _started_s(run: MergedRun) -> float:
    return datetime.fromisoformat(run.facts.started).timestamp()


def _match(distance: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns paired in order: most pairs of finite distance, then the least sum of distances."""
    rows, columns = distance.shape
    best: list[list[tuple[int, float]]] = [[(0, 0.0)] * (columns + 1) for _ in range(rows + 1)]

    def paired(row: int, column: int) -> tuple[int, float]:
        fewer, length = best[row][column]
        return fewer - 1, length + float(distance[row, column])

    for row in range(rows):
        for column in range(columns):
            skipped = min(best[row][column + 1], best[row + 1][column])
            possible = np.isfinite(distance[row, column])
            best[row + 1][column + 1] = min(skipped, paired(row, column)) if possible else skipped
    found, row, column = [], rows, columns
    while row and column:
        if best[row][column] == best[row - 1][column]:
            row -= 1
        elif best[row][column] == best[row][column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            found.append((row, column))
    return found[::-1]
