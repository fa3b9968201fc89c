"""Who beats whom: the pairs of arms as a table, those that are told apart first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbench.analysis.record import PairRecord
from dynbench.analysis.tables import format_interval, format_ratio
from dynbench.table_text import Table

HEADER = ("arm", "against", "told apart", "times as fast", "interval", "p, Holm")


@dataclass(frozen=True)
class Rank:
    """A pair as the table has it, the arm that looks faster first.

    Attributes:
        arm, other: names.
        told_apart: the difference is told from chance, among all pairs.
        ratio: how many times as fast the arm is, 1 or more.
        interval: of this pair alone: by the pooled spread, else by its own.
        p: held jointly over all pairs.
    """

    arm: str
    other: str
    told_apart: bool
    ratio: float
    interval: tuple[float, float] | None
    p: float

    @property
    def numbers(self) -> list[str]:
        """Ratio, interval and p for reading."""
        p = f"{self.p:.3f}" if self.p >= 0.001 else "< 0.001"
        return [format_ratio(self.ratio), format_interval(self.interval), p]


def ranking(pairs: Sequence[PairRecord]) -> list[Rank]:
    """The pairs that have a p value, those told apart first and by their ratio; none of a single pair.

    Args:
        pairs: of one analysis.
    """
    ranks = [_rank(pair, pair.p_holm) for pair in pairs if pair.p_holm is not None]
    ranks.sort(key=lambda rank: (not rank.told_apart, -rank.ratio))
    return ranks if len(ranks) > 1 else []


def readable(pairs: Sequence[PairRecord]) -> tuple[Table, str] | None:
    """The table for people, and what its p values mean, in a line; None without a ranking."""
    rows = [[rank.arm, rank.other, "yes" if rank.told_apart else "no", *rank.numbers] for rank in ranking(pairs)]
    if not rows:
        return None
    spread = "pooled over the arms" if "pooled" in {pair.spread for pair in pairs} else "of each pair's own launches"
    joint = f"p is held jointly over {len(rows)} pairs (Holm); spread {spread}; an interval is that of its pair alone"
    return Table(HEADER, rows, "who beats whom"), joint


def _rank(pair: PairRecord, p: float) -> Rank:
    interval, told = pair.pooled_ci95 or pair.ci95, pair.faster is not None
    if pair.speedup >= 1:
        return Rank(pair.candidate, pair.baseline, told, pair.speedup, interval, p)
    turned = None if interval is None else (1 / interval[1], 1 / interval[0])
    return Rank(pair.baseline, pair.candidate, told, 1 / pair.speedup, turned, p)
