"""The questions a report answers, in sentences with numbers that hold in every outcome.

Each sentence is a text of the template's front matter, chosen by what was measured: less, more, the same, not
measured, not comparable, or nothing to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbench.experiment.formats import interval, number, percent, speedup
from dynbench.experiment.offline_plans import Solved
from dynbench.experiment.report_settings import cost_of
from dynbench.experiment.subject import Json, Subject, mean_of
from dynbench.report import Template, substitute, table

Texts = dict[str, str | None]

QUESTIONS: Mapping[str, tuple[str, str]] = {
    "imbalance": ("std_over_ranks.padded_tokens.mean", "padded_tokens_max.mean"),
    "tail": ("step_time_ms.p95", "step_time_ms.mean"),
    "memory": ("std_over_ranks.peak_mem_mb.mean", "peak_mem_mb.max"),
}
"""Name of the question to the metric that answers it, and the one told beside it; less is better in all."""

OWN = (
    *("arm.name", "change.percent", "groups.names", "answers.groups", "bound.speedup", "bound.said"),
    *(f"{which}.{what}" for which in ("first", "second") for what in ("before", "after", "change")),
    *("proxy.correlation", "proxy.mape", "costs.policy", "costs.list", "costs.best"),
    *("predicted.speedup", "predicted.reached", "achieved.speedup", "achieved.interval"),
    *("skipped.name", "skipped.reason"),
)
"""Placeholders that only the texts of single sentences use."""

SAME = 5e-4
"""Relative changes below this round to 0.0 %."""


@dataclass(frozen=True)
class Speaker:
    """Fills texts of a template's front matter.

    Attributes:
        subject: what is spoken of.
        template: the texts.
        values: placeholders that all texts may use.
    """

    subject: Subject
    template: Template
    values: Mapping[str, str | None]

    def say(self, key: str, **own: str | None) -> str:
        """The text of a key; a name's first underscore stands for the dot of its placeholder."""
        named = {name.replace("_", ".", 1): text for name, text in own.items()}
        return substitute(self.template, self.template.label(key), {**self.values, **named})

    def bullets(self, lines: Sequence[str]) -> str:
        """One line each, as a list."""
        return "\n".join(f"- {line}" for line in lines)


def change(before: float | None, after: float | None) -> tuple[str, float | None]:
    """Which text says how a value changed (`less`, `more`, `same`, `unknown`), and by which part of `before`."""
    if before is None or after is None:
        return "unknown", None
    if before == after:
        return "same", 0.0
    if before <= 0:
        return ("more" if after > before else "less"), None
    part = after / before - 1
    if abs(part) < SAME:
        return "same", 0.0
    return ("more" if part > 0 else "less"), abs(part)


def _gained(comparison: Json, metric: str) -> tuple[str, float] | None:
    """The change as the comparison has it, over paired launches, of a metric of which less is better; else None."""
    gains = comparison.get("improvement_percent")
    gain = _float(gains.get(metric)) if isinstance(gains, Mapping) else None
    if gain is None:
        return None
    if abs(gain) < 100 * SAME:
        return "same", 0.0
    return ("less" if gain > 0 else "more"), abs(gain) / 100


def question(speaker: Speaker, name: str) -> str:
    """The answer to one of `QUESTIONS`: where it got better or worse, then every candidate with its numbers."""
    subject, (first, second) = speaker.subject, QUESTIONS[name]
    baseline = subject.arms[subject.baseline]
    if not subject.comparisons:
        values = {"first_after": number(mean_of(baseline, first)), "second_after": number(mean_of(baseline, second))}
        return speaker.say(f"answers.{name}.alone", **values)
    groups: dict[str, list[str]] = {}
    lines = []
    for item in subject.comparisons:
        arm = str(item.get("candidate"))
        if item.get("verdict") == "INCOMPARABLE":
            lines.append(speaker.say("answers.incomparable", arm_name=f"`{arm}`"))
            continue
        own: Texts = {"arm_name": f"`{arm}`"}
        for label, metric in (("first", first), ("second", second)):
            before, after = mean_of(baseline, metric), mean_of(subject.arms.get(arm, ()), metric)
            kind, part = _gained(item, metric) or change(before, after)
            if label == "first":
                groups.setdefault(kind, []).append(f"`{arm}`")
            said = "more_from_zero" if part is None and kind != "unknown" else kind
            own |= {f"{label}_before": number(before), f"{label}_after": number(after)}
            own[f"{label}_change"] = speaker.say(f"change.{said}", change_percent=percent(part))
        lines.append(speaker.say(f"answers.{name}.line", **own))
    lead = speaker.say(f"answers.{name}.lead", answers_groups=_groups(speaker, groups)) if groups else ""
    return "\n\n".join(part for part in (lead, speaker.bullets(lines)) if part)


def proxies(speaker: Speaker) -> str:
    """How well padded tokens and the planner's cost stood for compute, arm by arm, as a table; empty without any."""
    template, subject = speaker.template, speaker.subject
    keys = [f"proxy.{name}.{fact}" for name in ("padded_tokens", "cost") for fact in ("correlation", "mape")]
    rows = []
    for name, members in subject.arms.items():
        values = [mean_of(members, key) for key in keys]
        if all(value is None for value in values):
            continue
        known = next((cost for member in members if (cost := cost_of(member, subject))), None)
        missing = template.label("words.not_measured")
        cells = [
            missing if value is None else f"{value:.3f}" if key.endswith("correlation") else str(percent(value))
            for key, value in zip(keys, values, strict=True)
        ]
        rows.append([name, known or missing, *cells])
    if not rows:
        return ""
    columns = ("arm", "cost", "tokens_correlation", "tokens_mape", "cost_correlation", "cost_mape")
    return table([template.label(f"headings.{column}") for column in columns], rows, numeric_from=2)


def proxy_sentence(speaker: Speaker) -> str:
    """The baseline's proxy error in words."""
    baseline = speaker.subject.arms[speaker.subject.baseline]
    correlation, mape = (mean_of(baseline, f"proxy.padded_tokens.{key}") for key in ("correlation", "mape"))
    if mape is None:
        return speaker.say("proxy.none")
    related = None if correlation is None else f"{correlation:.3f}"
    return speaker.say("proxy.found", proxy_correlation=related, proxy_mape=percent(mape))


def predictions(speaker: Speaker, solved: Solved | None) -> str:
    """Every candidate's predicted speed-up beside the one achieved."""
    subject, lines = speaker.subject, []
    for item in subject.comparisons:
        arm = str(item.get("candidate"))
        if item.get("verdict") == "INCOMPARABLE":
            lines.append(speaker.say("answers.incomparable", arm_name=f"`{arm}`"))
            continue
        probed = item.get("predicted_speedup")
        planned = planned_speedup(solved, subject.baseline, arm)
        common = {
            "arm_name": f"`{arm}`",
            "achieved_speedup": speedup(item),
            "achieved_interval": interval(item) or speaker.template.label("words.no_interval"),
            "bound_said": _bound(speaker, item),
        }
        for kind, value in (("probe", probed), ("plan", planned)):
            if isinstance(value, int | float):
                achieved = item.get("speedup")
                reached = achieved / value if isinstance(achieved, int | float) and value else None
                own = {"predicted_speedup": _ratio(value), "predicted_reached": percent(reached)}
                lines.append(speaker.say(f"prediction.{kind}", **common, **own).strip())
        if not isinstance(probed, int | float) and planned is None:
            lines.append(speaker.say("prediction.none", **common).strip())
    return speaker.bullets(lines) if lines else speaker.say("prediction.alone")


def _bound(speaker: Speaker, comparison: Json) -> str:
    """The bound on what the candidate could reach, and of which plans it is; empty where there is none."""
    bound = comparison.get("bound_speedup")
    if not isinstance(bound, int | float):
        return ""
    kind = "samples" if comparison.get("bound_within_steps") is False else "steps"
    return speaker.say(f"prediction.bound_{kind}", bound_speedup=_ratio(bound))


def planned_speedup(solved: Solved | None, baseline: str, candidate: str) -> float | None:
    """Baseline's planned cost per real token over the candidate's; None where they have no common unit of time.

    Where they were planned with other costs or speeds, a baseline of equal counts has the same plans under the
    candidate's, as long as it takes as many micro-batches: then it is what the candidate was planned against.
    """
    if solved is None:
        return None
    lines = {str(line.get("arm")): line for line in solved.results if line.get("arm") is not None}
    before, after = lines.get(baseline), lines.get(candidate)
    if before is None or after is None:
        return None
    if "tokens_sq" in (before.get("cost_type"), after.get("cost_type")):
        return None
    top, bottom = _float(before.get("cost_per_token")), _float(after.get("cost_per_token"))
    if top and bottom and all(before.get(key) == after.get(key) for key in ("cost_type", "speeds")):
        return top / bottom
    same_static = before.get("policy") == "static" and before.get("micro_batches") == after.get("micro_batches")
    return _float(after.get("speedup_vs_static")) if same_static else None


def unplanned(speaker: Speaker, solved: Solved | None) -> str:
    """What could not be planned offline, and why; empty where everything was."""
    lines = []
    for item in solved.skipped if solved else ():
        arm, policy = item.get("arm"), item.get("policy")
        own = {"skipped_name": f"`{arm or policy}`", "skipped_reason": str(item.get("reason"))}
        lines.append(speaker.say(f"solve.skipped_{'arm' if arm else 'policy'}", **own))
    return speaker.bullets(lines)


def cost_types(speaker: Speaker, solved: Solved | None) -> str:
    """Which cost helps the tail: from arms that differ in it, else from plans on the same lengths."""
    said = [*_measured_costs(speaker), *(_planned_costs(speaker, solved.cost_types) if solved else ())]
    return speaker.bullets(said) if said else speaker.say("costs.none")


def cost_types_table(lines: Sequence[Json], template: Template) -> str:
    """Every policy and cost type, judged by padded tokens and, where known, by measured time; empty without lines."""
    if not lines:
        return ""
    rows = [
        [
            str(line.get("policy")),
            f"`{line.get('cost_type')}`",
            template.label(f"costs.judge_{line.get('judge')}", str(line.get("judge"))),
            number(_float(line.get("mean"))) or "",
            number(_float(line.get("p95"))) or "",
        ]
        for line in lines
    ]
    columns = ("policy", "cost", "judge", "judged_mean", "judged_p95")
    return table([template.label(f"headings.{column}") for column in columns], rows, numeric_from=3)


def _measured_costs(speaker: Speaker) -> list[str]:
    """Per policy with arms of several costs: the 95th percentile of the step time of each."""
    subject = speaker.subject
    by_policy: dict[str, list[tuple[str, str, float]]] = {}
    refused = {item.get("candidate") for item in subject.comparisons if item.get("verdict") == "INCOMPARABLE"}
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
        p95 = _float(line.get("p95"))
        if line.get("judge") == judge and p95 is not None:
            by_policy.setdefault(str(line.get("policy")), {})[f"`{line.get('cost_type')}`"] = p95
    said = []
    for policy, found in by_policy.items():
        listed = ", ".join(f"{cost} {number(p95)}" for cost, p95 in found.items())
        own = {"costs_policy": f"`{policy}`", "costs_list": listed, "costs_best": _least(found)}
        said.append(speaker.say(f"costs.planned_{judge}", **own))
    return said


def _groups(speaker: Speaker, groups: Mapping[str, Sequence[str]]) -> str:
    """`smaller under a, b; larger under c`."""
    named = [
        speaker.say(f"groups.{kind}", groups_names=", ".join(groups[kind]))
        for kind in ("less", "more", "same", "unknown")
        if kind in groups
    ]
    return speaker.template.label("groups.joint").join(named)


def _least(values: Mapping[str, float]) -> str:
    """The names of the least value, and of those that equal it after rounding."""
    least = min(values.values())
    return ", ".join(name for name, value in values.items() if value <= least * (1 + SAME))


def _ratio(value: object) -> str | None:
    return f"{value:.3f}" if isinstance(value, int | float) else None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
