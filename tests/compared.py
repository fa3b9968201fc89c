"""A comparison as a record, made up."""

from __future__ import annotations

from dynbench.analysis.record import ComparisonRecord

ARMS = [{"name": "static", "runs": ["a"]}]
"""The arm of a made-up record, whose runs are those called `a`."""


def compared(**facts: object) -> ComparisonRecord:
    """A candidate against the baseline, with what is given laid over."""
    known = {"baseline": "static", "candidate": "partition", "verdict": "FASTER", "reason": "it is", "level": "step"}
    numbers = {"speedup": 1.3, "ci95": [1.2, 1.4], "launches": 4, "same_work": facts.get("level", "step") == "step"}
    return ComparisonRecord.model_validate({**known, **numbers, **facts})
