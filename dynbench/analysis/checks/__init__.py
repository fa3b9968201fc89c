"""The registry of checks: what could make the numbers uncertain or wrong, one file each.

Adding one: a file in this package with `check(evidence) -> Iterator[Finding]`, and its name in `CHECKS`; the file's
name is the check's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import import_module

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.errors import ChecksFailed

CHECKS: tuple[str, ...] = (
    "forced_comparison",
    "missing_ranks",
    "partial_run",
    "rank_files",
    "torn_lines",
    "nan_loss",
    "one_class",
    "one_length",
    "loss_parity",
    "environment",
    "few_launches",
    "launch_order",
    "launch_spread",
    "resolution",
    "memory_limit",
    "short_warmup",
    "drift",
    "oversubscribed_cores",
    "skipped_steps",
    "unaccounted_time",
    "planning_cost",
    "exposed_communication",
    "different_samples",
    "virtual_ranks",
)
"""Checks in the order in which they are shown."""


def run_checks(evidence: Evidence) -> list[Finding]:
    """The findings of every check, in the registry's order."""
    findings: list[Finding] = []
    for name in CHECKS:
        check: Callable[[Evidence], Iterable[Finding]] = import_module(f"{__name__}.{name}").check
        findings += [replace(finding, id=name) for finding in check(evidence)]
    return findings


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
