"""The registry of checks: what could make the numbers uncertain or wrong.

Adding one: a function `check(evidence) -> Iterator[Seen]` in the module of its subject, and what it says in
`report/records.LANGUAGE.yaml` under the function's name, which is the check's id, at its place among the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dynbench.analysis.checks import comparisons, runs
from dynbench.analysis.checks.evidence import Evidence, Seen, worded
from dynbench.analysis.record import Finding
from dynbench.runs.phrase import texts

Check = Callable[[Evidence], Iterator[Seen]]
_FUNCTIONS = vars(comparisons) | vars(runs)
_IDS = dict.fromkeys(say.partition(".seen")[0] for say in texts() if ".seen" in say)
CHECKS: Mapping[str, Check] = {check: _FUNCTIONS[check] for check in _IDS}
"""Checks by id, in the order of their texts, in which they are shown."""


def run_checks(evidence: Evidence) -> list[Finding]:
    """The findings of every check, in the registry's order."""
    return [worded(name, seen) for name, check in CHECKS.items() for seen in check(evidence)]
