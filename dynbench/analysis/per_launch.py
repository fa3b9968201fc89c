"""One number of every launch, such as its time per token or the P95 of its steps, held between arms.

Whatever the number is, it is judged in the same way: ratios of paired launches, a spread per arm where there are enough
arms, what arms configured alike come out different by, and intervals that hold jointly (`verdict`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from dynbench.analysis import verdict
from dynbench.analysis.arms import Arm, Pair, alike, by_seed, pair_launches
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.record import TailRecord
from dynbench.analysis.stats import FEWEST_PAIRS, FloatArray, Ratio, pair_spread, paired_ratio


@dataclass(frozen=True)
class PerLaunch:
    """The number, and how arms compare in it.

    Attributes:
        arms: all arms of an analysis, the baseline first.
        of: the number of a launch, positive, of which less is better.
        confidence: level of the intervals.
        first: launches per arm of the first stage, whose spread intervals keep, where it said how many follow: those of
            the lowest seeds, as a comparison numbers its launches, so that one that had to be repeated later stays in
            its stage.
    """

    arms: Sequence[Arm]
    of: Callable[[MergedRun], float]
    confidence: float
    first: int | None = None

    def ratio(self, pairs: Sequence[Pair]) -> Ratio:
        """What pairs of launches of two of the arms show: the first arm's number over the second's."""
        before, after = ([self.of(pair[side]) for pair in by_seed(pairs)] for side in (0, 1))
        return paired_ratio(before, after, self.confidence, self.first)

    @cached_property
    def _table(self) -> FloatArray:
        """Logarithms, [launches, arms], of the launches that have all arms; of two stages those of the first."""
        return verdict.launch_table(self.arms, self.of)[: self.first]

    def _spread(self, one: str, other: str, ratio: Ratio) -> verdict.Spread | None:
        """What the ratio of two arms, by their labels, rests on; None where it has no interval."""
        own = pair_spread(ratio, self.confidence)
        if own is None:
            return None
        if len(self.arms) < verdict.FEWEST_ARMS or len(self._table) < 2:
            return verdict.Spread(own, ratio.df, "own")
        labels = [arm.label for arm in self.arms]
        variances = dict(zip(labels, verdict.arm_variances(self._table), strict=True))
        sd, df = verdict.of_two(variances[one], variances[other], len(self._table) - 1)
        return verdict.Spread(float(sd), float(df), "arms")

    @cached_property
    def aa_noise(self) -> float | None:
        """What arms configured alike differ by; None without any."""
        measured = [self._noise(*two) for two in combinations(self.arms, 2)]
        return max((noise for noise in measured if noise is not None), default=None)

    def _noise(self, one: Arm, other: Arm) -> float | None:
        """What two arms of one configuration differ by; None for any others."""
        if one.stored != other.stored:
            return None
        pairs = pair_launches(one, other).pairs
        if any(
            run.facts.launch_id is not None and run.facts.launch_id != beside.facts.launch_id for run, beside in pairs
        ):
            return None  # each took turns with others: what lies between launches is no noise of theirs
        return self.ratio(pairs).noise if pairs and alike(pairs) else None

    def hold(self, pairs: Sequence[tuple[str, str, Ratio | None]]) -> list[verdict.Joint | None]:
        """Labels of two arms and their ratio, judged together; None of those without a ratio or an interval."""
        found = {
            index: (ratio, spread)
            for index, (one, other, ratio) in enumerate(pairs)
            if ratio is not None and (spread := self._spread(one, other, ratio))
        }
        ratios, spreads = [ratio for ratio, _ in found.values()], [spread for _, spread in found.values()]
        joint = dict(zip(found, verdict.hold_jointly(ratios, spreads, self.confidence), strict=True))
        return [joint.get(index) for index in range(len(pairs))]


def tail_record(ratio: Ratio, joint: verdict.Joint | None, noise: float, aa_noise: float | None) -> TailRecord:
    """What is kept of two arms' P95 of the step time.

    Args:
        ratio: the baseline's over the candidate's.
        joint: the same as one of its family; None without an interval.
        noise: differences below this part count as none.
        aa_noise: part by which equal arms came out different, where there were any.
    """
    if joint is None:
        return TailRecord(speedup=ratio.estimate, interval=None, verdict=verdict.Verdict.ESTIMATE)
    found, launches = verdict.decide(joint.ratio, noise, aa_noise), None
    if found is verdict.Verdict.AMBIGUOUS and ratio.pairs >= FEWEST_PAIRS and joint.spread.sd > 0:
        launches = verdict.launches_to_decide(ratio, joint.spread, joint.level, verdict.aim_of(ratio, noise))
    return TailRecord(speedup=ratio.estimate, interval=joint.ratio.ends, verdict=found, launches_needed=launches)
