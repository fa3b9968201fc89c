"""How well the costs of a plan stand for time, and which of them helps the tail of the step time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dynbench.analysis.verdict import Verdict
from dynbench.experiment.answers import SAME
from dynbench.experiment.offline_plans import Solved, float_of
from dynbench.experiment.report_settings import cost_of, fills_with_padding
from dynbench.experiment.subject import Json, Subject, mean_of


@dataclass(frozen=True)
class CostTypes:
    """Plans of one policy by different costs, by the 95th percentile of what judges them.

    Attributes:
        policy: its name.
        judge: `step_ms`, measured step time; offline a step's largest share, in padded `tokens` or in ms as `measured`.
        p95: by arm, offline by cost.
        costs: arm to its cost; none offline.
    """

    policy: str
    judge: str
    p95: Mapping[str, float]
    costs: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> list[str]:
        """Of the least value, and of those that equal it after rounding."""
        least = min(self.p95.values())
        return [name for name, value in self.p95.items() if value <= least * (1 + SAME)]


def facts(subject: Subject, solved: Solved | None) -> dict[str, object]:
    """What sentences are about."""
    baseline = subject.arms[subject.baseline]
    return {
        "row_costs": list(row_costs(subject)),
        "proxy": {key: mean_of(baseline, f"proxy.padded_tokens.{key}") for key in ("correlation", "mape")},
        "cost_types": [*_measured_costs(subject), *(_planned_costs(solved.cost_types) if solved else ())],
    }


def row_costs(subject: Subject) -> Iterator[tuple[str, str | None]]:
    """The arms without padding, each with the cost that it was planned with; None where that is not known."""
    for name, members in subject.arms.items():
        rows = [member for member in members if not fills_with_padding(member)]
        if rows:
            yield name, next((cost for member in rows if (cost := cost_of(member, subject))), None)


def _measured_costs(subject: Subject) -> Iterator[CostTypes]:
    """Of every policy with arms of several costs."""
    by_policy: dict[str, tuple[dict[str, float], dict[str, str]]] = {}
    refused = {item.candidate for item in subject.comparisons if item.verdict is Verdict.INCOMPARABLE}
    for name, members in subject.arms.items():
        config, p95 = members[0].config or {}, mean_of(members, "step_time_ms.p95")
        policy = config.get("schedule.policy")
        if p95 is not None and policy not in (None, "static") and name not in refused:
            values, costs = by_policy.setdefault(str(policy), ({}, {}))
            values[name], costs[name] = p95, str(config.get("schedule.cost_type"))
    for policy, (values, costs) in by_policy.items():
        if len({*costs.values()}) > 1:
            yield CostTypes(policy, "step_ms", values, costs)


def _planned_costs(lines: Sequence[Json]) -> Iterator[CostTypes]:
    """Of every policy."""
    judge = "measured" if any(line.get("judge") == "measured" for line in lines) else "tokens"
    by_policy: dict[str, dict[str, float]] = {}
    for line in lines:
        p95 = float_of(line.get("p95"))
        if line.get("judge") == judge and p95 is not None:
            by_policy.setdefault(str(line.get("policy")), {})[str(line.get("cost_type"))] = p95
    for policy, found in by_policy.items():
        yield CostTypes(policy, judge, found)
