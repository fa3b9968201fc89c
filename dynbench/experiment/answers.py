"""What a report tells of a comparison, in sentences with numbers that hold in every outcome.

Each sentence is a text of the template's front matter, chosen by what was measured: less, more, the same, not
measured, not comparable, or nothing to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbench.analysis.metrics import METRICS, equal_batches
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.formats import interval, loss_difference, loss_drift, number, percent, ratio
from dynbench.experiment.offline_plans import Solved, planned_speedup
from dynbench.experiment.subject import Subject, mean_of, whole
from dynbench.report import Template, substitute

Texts = dict[str, str | None]

TOPICS: Mapping[str, tuple[str, str]] = {
    "imbalance": ("std_over_ranks.padded_tokens.mean", "padded_tokens_max.mean"),
    "tail": ("step_time_ms.p95", "step_time_ms.mean"),
    "memory": ("std_over_ranks.peak_mem_mb.mean", "peak_mem_mb.max"),
    "peak": ("peak_mem_mb.max", "std_over_ranks.peak_mem_mb.mean"),
    "traffic": ("exposed_comm_ms.mean", "step_time_ms.mean"),
}
"""Name of what is told to the metric that says it, and the one beside it; less is better in all."""

UNEQUAL = ("std_over_ranks.compute_ms.mean", "std_over_ranks.padded_tokens.mean")
"""The same of the imbalance where ranks are unequal: equal times are the aim, not equal tokens."""

OWN = (
    *("arm.name", "change.percent", "groups.names", "answers.groups", "bound.speedup", "bound.said"),
    *(f"{which}.{what}" for which in ("first", "second") for what in ("before", "after", "change")),
    *("predicted.speedup", "predicted.reached", "achieved.speedup", "achieved.interval"),
    *("skipped.name", "skipped.reason"),
    *(f"planning.{what}" for what in ("arm", "share", "least_arm", "least_share")),
    *(f"loss.{what}" for what in ("drift", "allowed", "step", "before", "after")),
)
"""Placeholders that only the texts of single sentences use."""

SAME = 5e-4
"""Relative changes below this round to 0.0 %."""

PER_STEP = {metric.key for metric in METRICS if metric.of == "step"}


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


def _gained(comparison: ComparisonRecord, metric: str) -> tuple[str, float] | None:
    """The change as the comparison has it, over paired launches, of a metric of which less is better; else None."""
    gain = comparison.improvement_percent.get(metric)
    if gain is None:
        return None
    if abs(gain) < 100 * SAME:
        return "same", 0.0
    return ("less" if gain > 0 else "more"), abs(gain) / 100


def topic(speaker: Speaker, name: str) -> str:
    """One of `TOPICS`: where it got better or worse, then every candidate with its numbers."""
    subject, (first, second) = speaker.subject, TOPICS[name]
    if name == "imbalance" and subject.unequal_ranks:
        name, (first, second) = "unequal", UNEQUAL
    baseline = subject.arms[subject.baseline]
    refused = [item.verdict is Verdict.INCOMPARABLE for item in subject.comparisons]
    unknown = all(mean_of(arm, metric) is None for arm in subject.arms.values() for metric in (first, second))
    if unknown and not any(refused):
        shared = any("together" in member.env for member in subject.members)
        return speaker.say(f"answers.unknown.{'shared' if shared else 'missing'}")
    if not subject.comparisons:
        values = {"first_after": number(mean_of(baseline, first)), "second_after": number(mean_of(baseline, second))}
        return speaker.say(f"answers.{name}.alone", **values)
    groups: dict[str, list[str]] = {}
    lines = []
    for item in subject.comparisons:
        own: Texts = {"arm_name": f"`{item.candidate}`"}
        if item.verdict is Verdict.INCOMPARABLE:
            lines.append(speaker.say("answers.incomparable", **own))
            continue
        candidate = subject.arms.get(item.candidate, ())
        equal = equal_batches(*([member.summary for member in whole(arm)] for arm in (baseline, candidate)))
        for label, metric in (("first", first), ("second", second)):
            before, after = mean_of(baseline, metric), mean_of(candidate, metric)
            kind, part = _gained(item, metric) or change(before, after)
            if not equal and metric in PER_STEP and kind != "unknown":
                kind, part = "unlike", 0.0
            if label == "first":
                groups.setdefault(kind, []).append(f"`{item.candidate}`")
            said = "more_from_zero" if part is None and kind != "unknown" else kind
            own |= {f"{label}_before": number(before), f"{label}_after": number(after)}
            own[f"{label}_change"] = speaker.say(f"change.{said}", change_percent=percent(part))
        lines.append(speaker.say(f"answers.{name}.line", **own))
    lead = speaker.say(f"answers.{name}.lead", answers_groups=_groups(speaker, groups)) if groups else ""
    return "\n\n".join(part for part in (lead, speaker.bullets(lines)) if part)


def losses(speaker: Speaker) -> str:
    """How far every candidate's loss is from the baseline's: in training, in a step, and as evaluated."""
    subject, lines = speaker.subject, []
    before = mean_of(subject.arms[subject.baseline], "eval.loss")
    for item in subject.comparisons:
        own: Texts = {
            "arm_name": f"`{item.candidate}`",
            "loss_drift": loss_drift(item),
            "loss_allowed": percent(subject.question.loss_drift),
            "loss_step": loss_difference(item) or speaker.template.label("words.not_compared"),
            "loss_before": number(before),
            "loss_after": number(mean_of(subject.arms.get(item.candidate, ()), "eval.loss")),
        }
        lines.append(speaker.say("answers.loss", **own))
    return speaker.bullets(lines)


def predictions(speaker: Speaker, solved: Solved | None) -> str:
    """Every candidate's predicted speed-up beside the one achieved."""
    subject, lines = speaker.subject, []
    for item in subject.comparisons:
        arm = item.candidate
        if item.verdict is Verdict.INCOMPARABLE:
            lines.append(speaker.say("answers.incomparable", arm_name=f"`{arm}`"))
            continue
        # Other steps were planned than were measured, which matters where arms have other samples in a step.
        alike = item.level in ("step", "window")
        probed, planned = item.predicted_speedup, planned_speedup(solved, subject.baseline, arm) if alike else None
        common = {
            "arm_name": f"`{arm}`",
            "achieved_speedup": ratio(item.speedup),
            "achieved_interval": interval(item) or speaker.template.label("words.no_interval"),
            "bound_said": _bound(speaker, item),
        }
        for kind, value in (("probe", probed), ("plan", planned)):
            if value is not None:
                reached = item.speedup / value if value else None
                own = {"predicted_speedup": ratio(value), "predicted_reached": percent(reached)}
                lines.append(speaker.say(f"prediction.{kind}", **common, **own).strip())
        if probed is None and planned is None:
            lines.append(speaker.say(f"prediction.{'none' if alike else 'otherwise'}", **common).strip())
    if not lines:
        return speaker.say("prediction.alone")
    told = any(item.bound_speedup is not None for item in subject.comparisons)
    return "\n\n".join([speaker.bullets(lines), *([speaker.say("prediction.note").strip()] if told else [])])


def planning(speaker: Speaker) -> str:
    """Which part of the step time planning takes in the arms that plan, of several the least and the most."""
    shares = {
        name: share
        for name, members in speaker.subject.arms.items()
        if (members[0].config or {}).get("schedule.mode") == "dynamic"
        if (share := mean_of(members, "plan_fraction")) is not None
    }
    if not shares:
        return speaker.say("planning.none")
    least, most = (choose(shares, key=shares.__getitem__) for choose in (min, max))
    own: Texts = {
        "planning_arm": f"`{most}`",
        "planning_share": percent(shares[most]),
        "planning_least_arm": f"`{least}`",
        "planning_least_share": percent(shares[least]),
    }
    return speaker.say(f"planning.{'one' if len(shares) == 1 else 'range'}", **own)


def _bound(speaker: Speaker, comparison: ComparisonRecord) -> str:
    """The bound on what the candidate could reach, and of which plans it is; empty where there is none."""
    if comparison.bound_speedup is None:
        return ""
    kind = "samples" if comparison.bound_within_steps is False else "steps"
    return speaker.say(f"prediction.bound_{kind}", bound_speedup=ratio(comparison.bound_speedup))


def unplanned(speaker: Speaker, solved: Solved | None) -> str:
    """What could not be planned offline, and why; empty where everything was."""
    lines = []
    for item in solved.skipped if solved else ():
        arm, policy = item.get("arm"), item.get("policy")
        own = {"skipped_name": f"`{arm or policy}`", "skipped_reason": str(item.get("reason"))}
        lines.append(speaker.say(f"solve.skipped_{'arm' if arm else 'policy'}", **own))
    return speaker.bullets(lines)


def _groups(speaker: Speaker, groups: Mapping[str, Sequence[str]]) -> str:
    """`smaller under a, b; larger under c`."""
    named = [
        speaker.say(f"groups.{kind}", groups_names=", ".join(groups[kind]))
        for kind in ("less", "more", "same", "unlike", "unknown")
        if kind in groups
    ]
    return speaker.template.label("groups.joint").join(named)
