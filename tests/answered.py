"""Which questions of the systems assignment the rows that a benchmark really makes answer."""

from __future__ import annotations

from collections.abc import Sequence

from dynbench.bench.base import Row
from dynbench.experiment.assignment.questions import QUESTIONS, answers
from dynbench.experiment.assignment.rows import Table


def unanswered(benchmark: str, rows: Sequence[Row]) -> list[str]:
    """Numbers of the questions about a benchmark of which these rows say nothing: columns or their values differ."""
    asked = {question.number for question in QUESTIONS if question.source == benchmark}
    assert asked, f"no question is about {benchmark}"
    found = answers([Table(benchmark, "here", rows)])
    return [each.question.number for each in found if each.question.number in asked and not each.statements]
