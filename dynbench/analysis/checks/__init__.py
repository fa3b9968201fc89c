"""The registry of checks: what could make the numbers uncertain or wrong.

Adding one: a function `check(evidence) -> Iterator[Seen]` in the module of its subject, its place in `CHECKS`, and what
it says in `wordings.yaml`; the function's name is the check's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dynbench.analysis.checks import comparisons, conditions, integrity, samples
from dynbench.analysis.checks.finding import Evidence, Seen, worded
from dynbench.analysis.finding import Finding
from dynbench.errors import ChecksFailed

Check = Callable[[Evidence], Iterator[Seen]]
_IN_ORDER: tuple[Check, ...] = (
    comparisons.forced_comparison,
    integrity.missing_ranks,
    integrity.partial_run,
    integrity.rank_files,
    integrity.torn_lines,
    integrity.nan_loss,
    samples.one_class,
    samples.one_length,
    comparisons.loss_parity,
    comparisons.loss_drift,
    comparisons.environment,
    comparisons.few_launches,
    comparisons.launch_order,
    comparisons.launch_spread,
    comparisons.resolution,
    conditions.memory_limit,
    conditions.short_warmup,
    conditions.drift,
    conditions.oversubscribed_cores,
    integrity.skipped_steps,
    integrity.unaccounted_time,
    conditions.planning_cost,
    conditions.exposed_communication,
    comparisons.different_samples,
    conditions.virtual_ranks,
)
CHECKS: Mapping[str, Check] = {check.__name__: check for check in _IN_ORDER}
"""Checks by id, in the order in which they are shown."""


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
