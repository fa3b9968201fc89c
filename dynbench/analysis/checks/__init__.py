"""The registry of checks: what could make the numbers uncertain or wrong.

Adding one: a function in the module of its subject, and what it says in `report/records.LANGUAGE.yaml` under the
function's name, which is the check's id, at its place among the others. Its parameter is called what it looks at: each
`run`, each `comparison`, or all of the `evidence`. It yields what it saw, without the names of the run or of the arms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

from dynbench.analysis.checks import comparisons, runs
from dynbench.analysis.checks.evidence import Evidence, Seen, names_of, worded
from dynbench.analysis.record import Finding
from dynbench.runs.phrase import texts

_FUNCTIONS = vars(comparisons) | vars(runs)
_IDS = dict.fromkeys(say.partition(".seen")[0] for say in texts() if ".seen" in say)
CHECKS: Mapping[str, Callable[[Any], Iterator[Seen]]] = {check: _FUNCTIONS[check] for check in _IDS}
"""Checks by id, in the order of their texts, in which they are shown."""


def run_checks(evidence: Evidence) -> list[Finding]:
    """The findings of every check, in the registry's order."""
    subjects = {"run": list(evidence.runs), "comparison": evidence.comparisons, "evidence": [evidence]}
    looked_at = {name: subjects[next(iter(signature(check).parameters))] for name, check in CHECKS.items()}
    return [finding for name, each in looked_at.items() for subject in each for finding in findings(name, subject)]


def findings(check: str, subject: object) -> list[Finding]:
    """Those of a check, of what it looks at."""
    seen = CHECKS[check](subject)
    return [worded(check, each._replace(values={**names_of(subject), **each.values})) for each in seen]
