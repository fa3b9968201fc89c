"""How well the costs of a plan stand for time, and which of them helps: sentences and tables on schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbench.analysis.verdict import Verdict
from dynbench.experiment.answers import SAME, Speaker
from dynbench.experiment.formats import number, percent
from dynbench.experiment.offline_plans import Solved, float_of
from dynbench.experiment.report_settings import cost_of, fills_with_padding
from dynbench.experiment.subject import Json, mean_of

OWN = ("row.cost",)
"""Placeholders that only the sentences of this module use."""


def row_costs(speaker: Speaker) -> str:
    """What the arms without padding were planned with, a line each; empty without any."""
    template, subject, lines = speaker.template, speaker.subject, []
    for name, members in subject.arms.items():
        rows = [member for member in members if not fills_with_padding(member)]
        if rows:
            known = next((cost for member in rows if (cost := cost_of(member, subject))), None)
            own = {"arm_name": f"`{name}`", "row_cost": known or template.label("words.not_measured")}
            lines.append(speaker.say("costs.row", **own))
    return speaker.bullets(lines)


def proxy_sentence(speaker: Speaker) -> str:
    """The baseline's proxy error in words."""
    baseline = speaker.subject.arms[speaker.subject.baseline]
    correlation, mape = (mean_of(baseline, f"proxy.padded_tokens.{key}") for key in ("correlation", "mape"))
    if mape is None:
        return speaker.say("proxy.none")
    related = None if correlation is None else f"{correlation:.3f}"
    return speaker.say("proxy.found", proxy_correlation=related, proxy_mape=percent(mape))


def cost_types(speaker: Speaker, solved: Solved | None) -> str:
    """Which cost helps the tail: from arms that differ in it, else from plans on the same lengths."""
    said = [*_measured_costs(speaker), *(_planned_costs(speaker, solved.cost_types) if solved else ())]
    return speaker.bullets(said) if said else speaker.say("costs.none")


def _measured_costs(speaker: Speaker) -> list[str]:
    """Per policy with arms of several costs: the 95th percentile of the step time of each."""
    subject = speaker.subject
    by_policy: dict[str, list[tuple[str, str, float]]] = {}
    refused = {item.candidate for item in subject.comparisons if item.verdict is Verdict.INCOMPARABLE}
    for name, members in subject.arms.items():
        config, p95 = members[0].config or {}, mean_of(members, "step_time_ms.p95")
        policy, cost = config.get("schedule.policy"), config.get("schedule.cost_type")
        if p95 is not None and policy not in (None, "static") and name not in refused:
            by_policy.setdefault(str(policy), []).append((name, str(cost), p95))
    said = []
    for policy, found in by_policy.items():
        if len({cost for _, cost, _ in found}) < 2:
            continue
        listed = ", ".join(f"`{name}` ({cost}) {number(p95)} ms" for name, cost, p95 in found)
        best = _least({f"`{name}`": p95 for name, _, p95 in found})
        said.append(speaker.say("costs.measured", costs_policy=f"`{policy}`", costs_list=listed, costs_best=best))
    return said


def _planned_costs(speaker: Speaker, lines: Sequence[Json]) -> list[str]:
    judges = [str(line.get("judge")) for line in lines]
    judge = "measured" if "measured" in judges else "tokens"
    by_policy: dict[str, dict[str, float]] = {}
    for line in lines:
        p95 = float_of(line.get("p95"))
        if line.get("judge") == judge and p95 is not None:
            by_policy.setdefault(str(line.get("policy")), {})[f"`{line.get('cost_type')}`"] = p95
    said = []
    for policy, found in by_policy.items():
        listed = ", ".join(f"{cost} {number(p95)}" for cost, p95 in found.items())
        own = {"costs_policy": f"`{policy}`", "costs_list": listed, "costs_best": _least(found)}
        said.append(speaker.say(f"costs.planned_{judge}", **own))
    return said


def _least(values: Mapping[str, float]) -> str:
    """The names of the least value, and of those that equal it after rounding."""
    least = min(values.values())
    return ", ".join(name for name, value in values.items() if value <= least * (1 + SAME))
