"""What a report says in a language, and what of it is English."""

from __future__ import annotations

import re
from typing import Any

from dynbench.experiment.offline_plans import read_solved
from dynbench.experiment.report_input import ReportInput
from dynbench.experiment.report_values import Sources, report_values
from dynbench.report import for_question, load_template, substitute

TERMS = {"abba", "all-reduce", "distilbert", "dropout", "gb", "mb", "ms", "rank", "token"}
"""Terms and units that Chinese texts keep."""

_CODE = re.compile(r"```.*?```|`[^`]*`|<[^>]*>|\]\([^)]*\)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def english_words(text: str, names: tuple[str, ...] = ()) -> list[str]:
    """Words of two letters and more outside code, but for terms and the names given."""
    text = _CODE.sub(" ", text)
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, " ")
    return [word for word in _WORD.findall(text) if word.lower() not in TERMS]


def numbers(text: str) -> list[str]:
    """All numbers, sorted; the same facts in two languages give the same."""
    return sorted(_NUMBER.findall(text))


def said(subject: ReportInput, block: str, language: str = "en") -> str:
    """`{{ say.BLOCK }}` of a subject's report."""
    sources = _sources(subject, language)
    return substitute(sources.template, f"{{{{ say.{block} }}}}", report_values(sources))


def facts(subject: ReportInput, language: str = "en") -> dict[str, Any]:
    """What the sentences of a subject's report are filled in from."""
    return report_values(_sources(subject, language))


def _sources(subject: ReportInput, language: str) -> Sources:
    question = subject.question
    template = for_question(load_template(language, None, question.template), question.name, ())
    return Sources(subject, read_solved(subject.run.path), template, subject.run.path)
