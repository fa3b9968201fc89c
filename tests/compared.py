"""A comparison as a record, made up; and arms compared as an analysis does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbench.analysis.arms import Arm
from dynbench.analysis.comparison import Comparison, Terms, compare_candidates
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.summary import summary_of
from dynbench.config.schema import Analysis

ARMS = [{"name": "static", "runs": ["a"]}]
"""The arm of a made-up record, whose runs are those called `a`."""


def compared(**facts: object) -> ComparisonRecord:
    """A candidate against the baseline, with what is given laid over."""
    known = {"baseline": "static", "candidate": "partition", "verdict": "FASTER", "reason": "it is", "level": "step"}
    numbers = {"speedup": 1.3, "ci95": [1.2, 1.4], "launches": 4, "same_work": facts.get("level", "step") == "step"}
    return ComparisonRecord.model_validate({**known, **numbers, **facts})


def compare_arms(arms: Sequence[Arm], settings: Analysis, **asked: Any) -> list[Comparison]:
    """Every further arm against the first, on the terms of `terms`."""
    return compare_candidates(terms(arms, settings, **asked))


def terms(arms: Sequence[Arm], settings: Analysis, *, question: str | None = None, **asked: Any) -> Terms:
    """What the comparisons of the arms share, with the summaries of all runs."""
    return Terms(arms, settings, {run.run.id: summary_of(run) for arm in arms for run in arm.runs}, question, **asked)
