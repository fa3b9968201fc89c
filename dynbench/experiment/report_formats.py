"""How numbers read in a report and on the terminal, and how what records say may be quoted there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar, cast

from pydantic import BaseModel

from dynbench.analysis.question import Question
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.subject import Subject
from dynbench.report import NBSP, number, percent
from dynbench.runs.phrase import Phrase
from dynbench.table_text import format_interval, format_ratio, printable

__all__ = [
    "NBSP",
    "interval",
    "loss_difference",
    "loss_drift",
    "number",
    "percent",
    "ratio",
    "saved_hours",
    "saved_interval",
]

HOURS = 1000
"""GPU-hours of the baseline that savings are counted in."""
T = TypeVar("T")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=[(:\[])")
_LINES = re.compile(r"\s*\n\s*")


def ratio(value: float | None) -> str | None:
    """`1.314`; None where nothing was measured."""
    return format_ratio(value) or None


def interval(comparison: ComparisonRecord) -> str | None:
    """`[1.251, 1.380]`, the interval that the verdict rests on; None for an estimate."""
    return format_interval(comparison.interval).replace(" ", NBSP) or None


def saved_hours(comparison: ComparisonRecord, subject: Subject) -> str | None:
    """GPU-hours saved per 1,000 of the baseline, by the speed-up s, 1000 * (1 - 1/s).

    None but for arms found FASTER, as no other verdict says that hours are saved; of arms on different numbers of
    ranks, an hour of which is not as many GPU-hours; and at level `tokens`, where other steps are taken over the same
    tokens, and may need more of them.
    """
    return f"{_saved(comparison.speedup):.0f}" if _saves(comparison, subject) else None


def saved_interval(comparison: ComparisonRecord, subject: Subject) -> str | None:
    """The same for both ends of the interval."""
    if comparison.interval is None or not _saves(comparison, subject):
        return None
    low, high = comparison.interval
    return f"[{_saved(low):.0f},{NBSP}{_saved(high):.0f}]"


def loss_difference(item: ComparisonRecord) -> str | None:
    """Largest relative difference of the loss between paired steps; None where it was not compared."""
    return None if item.loss_max_rel_diff is None else f"{item.loss_max_rel_diff:.1e}"


def loss_drift(item: ComparisonRecord) -> str | None:
    """How far the mean training loss is above the baseline's; None where it is not finite."""
    return None if item.loss_drift is None else f"{100 * item.loss_drift:+.2f}{NBSP}%"


def _saves(comparison: ComparisonRecord, subject: Subject) -> bool:
    found = comparison.verdict is Verdict.FASTER and not comparison.aa
    return found and comparison.level != "tokens" and subject.same_ranks(comparison)


def _saved(speed: float) -> float:
    return HOURS * (1 - 1 / speed)


def quoted(text: str) -> str:
    """A text that is text wherever Markdown has it: no HTML, link, image, or line of its own begins in it."""
    return _LINK.sub(r"\\]", _TAG.sub("&lt;", _LINES.sub(" ", printable(text))))


def all_quoted(record: T) -> T:
    """A record, whatever it is made of, with every text in it as `quoted` has it; keys of mappings too."""
    return cast(T, _walk(record))


def _walk(value: object) -> object:
    if isinstance(value, Phrase):
        return Phrase(quoted(value), value.say, **cast("dict[str, object]", _walk(value.values)))
    if type(value) is str:
        return quoted(value)
    if isinstance(value, Mapping):
        return {_walk(key): _walk(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_walk, value))  # type: ignore[call-arg, call-overload]
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _walk(getattr(value, name)) for name in type(value).model_fields})
    if is_dataclass(value) and not isinstance(value, type | Question):
        return replace(value, **{item.name: _walk(getattr(value, item.name)) for item in fields(value) if item.init})
    return value
