"""Who beats whom: the pairs of arms as a table, those that are told apart first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbench.analysis.record import PairRecord


@dataclass(frozen=True)
class Rank:
    """A pair as the table has it, the arm that looks faster first.

    Attributes:
        arm, other: names.
        told_apart: the verdict calls one of them faster.
        ratio: how many times as fast the arm is, 1 or more.
        interval: that the pair's verdict rests on.
        p: held jointly over the pairs that are judged together.
    """

    arm: str
    other: str
    told_apart: bool
    ratio: float
    interval: tuple[float, float] | None
    p: float


def ranking(pairs: Sequence[PairRecord]) -> list[Rank]:
    """The pairs that have a p value, those told apart first and by their ratio; none of a single pair.

    Args:
        pairs: of one analysis.
    """
    # Earlier versions pooled one spread over all arms, which told equal arms apart where one spread more.
    ranks = [_rank(pair, pair.p_holm) for pair in pairs if pair.p_holm is not None and pair.spread != "pooled"]
    ranks.sort(key=lambda rank: (not rank.told_apart, -rank.ratio))
    return ranks if len(ranks) > 1 else []


def held_jointly(pairs: Sequence[PairRecord]) -> str:
    """What the intervals and p values of a ranking mean, in a line."""
    spread = "of each arm" if "arms" in {pair.spread for pair in pairs} else "of each pair's own launches"
    first, others = families(pairs)
    families_said = f"the {first} with {pairs[0].baseline}" + (f", and the {others} others" if others else "")
    return f"intervals and p hold jointly (Holm) for {families_said}; spread {spread}; as in the verdicts"


def families(pairs: Sequence[PairRecord]) -> tuple[int, int]:
    """How many pairs are judged together: those with the baseline, and all others."""
    judged = [pair.baseline == pairs[0].baseline for pair in pairs if pair.p_holm is not None]
    return sum(judged), len(judged) - sum(judged)


def _rank(pair: PairRecord, p: float) -> Rank:
    interval, told = pair.interval, pair.faster is not None
    if pair.speedup >= 1:
        return Rank(pair.candidate, pair.baseline, told, pair.speedup, interval, p)
    turned = None if interval is None else (1 / interval[1], 1 / interval[0])
    return Rank(pair.baseline, pair.candidate, told, 1 / pair.speedup, turned, p)
