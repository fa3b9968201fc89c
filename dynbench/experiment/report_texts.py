"""What records say, in the language of a report, and how numbers of comparisons read there and on the terminal."""

from __future__ import annotations

from dynbench.analysis.record import ComparisonRecord, Finding
from dynbench.analysis.run_facts import MARK, status_phrase
from dynbench.analysis.verdict import Verdict
from dynbench.analysis.waste import Recovery
from dynbench.experiment.report_input import ReportInput
from dynbench.report import Template, signed_percent
from dynbench.runs.phrase import NBSP, translated

HOURS = 1000
"""GPU-hours of the baseline that savings are counted in."""


def said(template: Template, record: object, text: object) -> str:
    """A phrase from its record; `text` where there is no record of it."""
    return translated(template.language, record, text)


def marked(subject: ReportInput, template: Template, arm: str) -> str:
    """The name of an arm, with a mark where its ranks share cores."""
    mark = template.label("scaling.oversubscribed", MARK)
    return f"`{arm}` ({mark})" if arm in subject.oversubscribed else f"`{arm}`"


def status(template: Template, word: object) -> str:
    """The status of a run."""
    return translated(template.language, status_phrase(str(word)).record())


def comm_model(template: Template, subject: ReportInput) -> str | None:
    """The communication model of virtual ranks; None for real ones, or when not recorded."""
    summaries = (member.summary for arm in subject.arms.values() for member in arm)
    found = next((summary for summary in summaries if summary.get("comm_model")), None)
    return said(template, found.get("comm_model_said"), found["comm_model"]) if found else None


def finding_texts(template: Template, check: Finding) -> list[str]:
    """Severity, check, what was seen, the limit and the next step of a finding as recorded."""
    return [template.label(f"severities.{check.severity}", check.severity), check.id, *check.words(template.language)]


def reason(template: Template, comparison: ComparisonRecord) -> str:
    """Why a comparison has its verdict."""
    return said(template, comparison.reason_said, comparison.reason)


def recovered(template: Template, comparison: ComparisonRecord) -> str | None:
    """How much of the baseline's loss a candidate gives back against the bound; None where it is not known."""
    if comparison.bound_speedup is None:
        return None
    within_steps = comparison.bound_within_steps is not False
    found = Recovery(comparison.bound_speedup, within_steps, comparison.recovered_share, 0.0)
    sentence = found.sentence(comparison.baseline)
    return said(template, sentence.record(), sentence)


def loss_difference(item: ComparisonRecord) -> str | None:
    """Largest relative difference of the loss between paired steps; None where it was not compared."""
    return None if item.loss_max_rel_diff is None else f"{item.loss_max_rel_diff:.1e}"


def loss_drift(item: ComparisonRecord) -> str | None:
    """How far the mean training loss is above the baseline's; None where it is not finite."""
    return signed_percent(item.loss_drift)


def saved_hours(comparison: ComparisonRecord, subject: ReportInput) -> str | None:
    """GPU-hours saved per 1,000 of the baseline, by the speed-up s, 1000 * (1 - 1/s).

    None but for arms found FASTER, as no other verdict says that hours are saved; of arms on different numbers of
    ranks, an hour of which is not as many GPU-hours; and at level `tokens`, where other steps are taken over the same
    tokens, and may need more of them.
    """
    return f"{_saved(comparison.speedup):.0f}" if _saves(comparison, subject) else None


def saved_interval(comparison: ComparisonRecord, subject: ReportInput) -> str | None:
    """The same for both ends of the interval."""
    if comparison.interval is None or not _saves(comparison, subject):
        return None
    low, high = comparison.interval
    return f"[{_saved(low):.0f},{NBSP}{_saved(high):.0f}]"


def _saves(comparison: ComparisonRecord, subject: ReportInput) -> bool:
    found = comparison.verdict is Verdict.FASTER and not comparison.aa
    return found and comparison.level != "tokens" and subject.same_ranks(comparison)


def _saved(speed: float) -> float:
    return HOURS * (1 - 1 / speed)
