"""What a report says of the tail of the step time: P95 of each arm against the baseline, and which cost lowers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from dynbench.analysis.measure import known_values
from dynbench.analysis.record import ComparisonRecord, TailRecord
from dynbench.analysis.stats import FEWEST_PAIRS
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.report_input import ReportInput

P95 = "step_time_ms.p95"
COST_TYPE = "schedule.cost_type"
UNDECIDED = (Verdict.AMBIGUOUS, Verdict.ESTIMATE)


@dataclass(frozen=True)
class CostTypes:
    """Arms that differ in nothing but the cost that their plans minimise.

    Attributes:
        policy: of all of them.
        least: the arm whose P95 is smallest.
        others: the other arms, each with its P95 against the least.
        noise: differences below this part count as none.
    """

    policy: str
    least: str
    others: Mapping[str, TailRecord]
    noise: float

    @property
    def undecided(self) -> Mapping[str, TailRecord]:
        """Arms that launches do not tell from the one whose P95 is smallest."""
        return {name: tail for name, tail in self.others.items() if tail.verdict in UNDECIDED}

    def judged(self, verdict: str) -> Mapping[str, TailRecord]:
        """Arms against which the least has a verdict."""
        return {name: tail for name, tail in self.others.items() if tail.verdict == verdict}


def shown_tail(item: ComparisonRecord) -> TailRecord | None:
    """As reports show it: an estimate where launches are too few for an interval that says anything."""
    if item.tail is None or item.launches >= FEWEST_PAIRS:
        return item.tail
    return item.tail.model_copy(update={"interval": None, "verdict": Verdict.ESTIMATE})


def tail_facts(source: ReportInput) -> dict[str, object]:
    """What sentences are about: P95 of each arm against the baseline, by verdict, and of arms that differ in costs."""
    tails = {item.candidate: tail for item in source.comparisons if (tail := shown_tail(item)) is not None}
    by_verdict = {verdict.value: {n: t for n, t in tails.items() if t.verdict is verdict} for verdict in Verdict}
    return {"tails": by_verdict if tails else None, "cost_tails": list(cost_types(source))}


def cost_types(source: ReportInput) -> Iterator[CostTypes]:
    """The groups of arms that differ in their cost type alone, where P95 was compared."""
    pairs = [pair for pair in source.pairs if pair.compared.keys() == {COST_TYPE} and pair.tail is not None]
    left = list(dict.fromkeys(name for pair in pairs for name in (pair.baseline, pair.candidate)))
    while left:
        group = [left[0], *(name for name in left[1:] if _between(pairs, left[0], name) is not None)]
        left = [name for name in left if name not in group]
        least = min(group, key=lambda name: geometric_mean(known_values(source.launches[name], P95)))
        against = {name: _between(pairs, name, least) for name in group if name != least}
        policy = str((source.arms[least][0].config or {}).get("schedule.policy"))
        yield CostTypes(policy, least, {n: t for n, t in against.items() if t is not None}, pairs[0].noise_threshold)


def _between(pairs: Sequence[ComparisonRecord], other: str, arm: str) -> TailRecord | None:
    """P95 of an arm against that of another, which of the two was the baseline in whichever order."""
    for pair in pairs:
        if (tail := shown_tail(pair)) is not None and {pair.baseline, pair.candidate} == {other, arm}:
            return tail if pair.candidate == arm else tail.turned
    return None
