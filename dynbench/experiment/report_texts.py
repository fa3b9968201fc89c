"""What records say, in the language of a report; their own English where the language has no text for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynbench.analysis.finding import Finding
from dynbench.analysis.question import TOKENS
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.recovery import Recovery
from dynbench.analysis.run_facts import MARK
from dynbench.experiment.report_formats import NBSP
from dynbench.experiment.subject import Json, Subject
from dynbench.report import Template, TemplateError
from dynbench.runs.phrase import Texts

EARLIER = {"rate": TOKENS.rate.record(), "unit": TOKENS.name.record()}
"""Values that records of earlier versions lack, as they had but one."""


def say(template: Template, key: str, values: Json) -> str | None:
    """The text of a key, filled in; None where the language has none, or the record is too old to have its values.

    Args:
        template: the texts.
        key: dotted, among the language's texts of records.
        values: as recorded; phrases and lists of them are said too.

    Raises:
        TemplateError: the text is not one of `str.format`.
    """
    text = template.labels.get(key)
    if text is None:
        return None
    try:
        return _Texts(template).vformat(text, (), {**EARLIER, **values})
    except KeyError:
        return None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise TemplateError(
            f"{template.path}: the text '{key}' cannot be filled in: {error}", "Copy it from report/."
        ) from error


def said(template: Template, record: object, text: object) -> str:
    """A phrase from its record; `text` where there is no record of it."""
    if not isinstance(record, Mapping):
        return str(text)
    values = record.get("values")
    found = say(template, f"phrases.{record.get('say')}", values if isinstance(values, Mapping) else {})
    return str(record.get("text", text)) if found is None else found


def marked(subject: Subject, template: Template, arm: str) -> str:
    """The name of an arm, with a mark where its ranks share cores."""
    mark = template.label("scaling.oversubscribed", MARK)
    return f"`{arm}` ({mark})" if arm in subject.oversubscribed else f"`{arm}`"


def status(template: Template, word: object) -> str:
    """The status of a run."""
    return template.label(f"phrases.status.{word}", str(word))


def comm_model(template: Template, subject: Subject) -> str | None:
    """The communication model of virtual ranks; None for real ones, or when not recorded."""
    summaries = (member.summary for arm in subject.arms.values() for member in arm)
    found = next((summary for summary in summaries if summary.get("comm_model")), None)
    return said(template, found.get("comm_model_said"), found["comm_model"]) if found else None


def finding_texts(template: Template, check: Finding) -> list[str]:
    """Severity, check, what was seen, the limit and the next step of a finding as recorded."""
    texts = [template.label(f"severities.{check.severity}", check.severity), check.id]
    for field, english in (("seen", check.seen), ("limit", check.limit), ("hint", check.hint)):
        key = ".".join(part for part in ("findings", check.id, field, check.cases.get(field)) if part)
        texts.append(say(template, key, check.values) or english)
    return texts


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


class _Texts(Texts):
    """Texts of a language, in which phrases are said."""

    percent = f"{NBSP}%"

    def __init__(self, template: Template) -> None:
        self._template = template
        self.separator = template.label("phrases.separator", ", ")

    def format_field(self, value: Any, format_spec: str) -> str:
        """A value in words."""
        if isinstance(value, Mapping):
            return said(self._template, value, value.get("text"))
        return super().format_field(value, format_spec)
