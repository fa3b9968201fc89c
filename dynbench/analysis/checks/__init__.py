"""The registry of checks: what could make the numbers uncertain or wrong.

Adding one: a function `check(evidence) -> Iterator[Seen]` in the module of its subject, and what it says in
`report/records.LANGUAGE.yaml` under the function's name, which is the check's id, at its place among the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dynbench.analysis.checks import comparisons, runs
from dynbench.analysis.checks.evidence import Evidence, Seen, worded
from dynbench.analysis.record import Finding
from dynbench.errors import ChecksFailed
from dynbench.runs.phrase import texts

Check = Callable[[Evidence], Iterator[Seen]]
_FUNCTIONS = vars(comparisons) | vars(runs)
_IDS = dict.fromkeys(say.partition(".seen")[0] for say in texts() if ".seen" in say)
CHECKS: Mapping[str, Check] = {check: _FUNCTIONS[check] for check in _IDS}
"""Checks by id, in the order of their texts, in which they are shown."""


def run_checks(evidence: Evidence) -> list[Finding]:
    """The findings of every check, in the registry's order."""
    return [worded(name, seen) for name, check in CHECKS.items() for seen in check(evidence)]


def require_clean(findings: Iterable[Finding], result: Mapping[str, object] | None = None) -> None:
    """Refuses findings that are more than information, as `--strict` asks.

    Args:
        findings: of `run_checks`.
        result: what the error keeps beside it, for `--json`.

    Raises:
        ChecksFailed: naming the checks.
    """
    failed = [finding for finding in findings if finding.severity != "info"]
    if failed:
        named = ", ".join(dict.fromkeys(finding.id for finding in failed))
        message = f"{len(failed)} finding{'s' if len(failed) > 1 else ''} of checks: {named}"
        raise ChecksFailed(message, failed[0].hint, result=result)
