"""Any arm against any arm: what every two of them show, each pair with the verdict and interval of its family.

Pairs with the baseline are the comparisons themselves. All other pairs are a second family: their verdicts hold jointly
among themselves (`joint`), and say nothing against those of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynbench.analysis.arms import pair_launches
from dynbench.analysis.comparison import Comparison, Terms, compare_two, judged_together
from dynbench.analysis.record import PairRecord
from dynbench.analysis.verdict import Verdict


@dataclass(frozen=True)
class ArmPair:
    """Two arms of an analysis.

    Attributes:
        comparison: of the two, as of a candidate with the baseline.
    """

    comparison: Comparison

    @property
    def faster(self) -> str | None:
        """The arm that the verdict calls the faster one; None where it calls neither so."""
        named = {
            Verdict.FASTER: self.comparison.candidate.label,
            Verdict.SLOWER: self.comparison.baseline.label,
        }
        return named.get(self.comparison.verdict)

    def record(self, id: str = "", path: str = "") -> PairRecord:
        """What is kept and printed of it."""
        joint = self.comparison.joint
        return PairRecord(
            **dict(self.comparison.record(id, path)),
            spread=joint.spread.basis if joint else None,
            p_holm=joint.p if joint else None,
            faster=self.faster,
        )


def compare_pairs(terms: Terms, comparisons: Sequence[Comparison]) -> list[ArmPair]:
    """Every arm against every later one; two arms without launches to pair are left out.

    Args:
        terms: what the comparisons share.
        comparisons: those with the first arm.
    """
    forced = replace(terms, force=True)
    others = [
        compare_two(forced, one, other)
        for index, one in enumerate(terms.arms[1:], start=1)
        for other in terms.arms[index + 1 :]
        if pair_launches(one, other, partial=True).pairs
    ]
    return [ArmPair(item) for item in (*comparisons, *judged_together(terms, others))]
