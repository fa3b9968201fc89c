"""The conditions of `--fail-on`: what in a finished result ends the command with exit code 6, for use in CI."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dynbench.analysis.record import ComparisonRecord, Finding
from dynbench.analysis.verdict import Verdict
from dynbench.errors import ChecksFailed, GateFailed, UsageError, unknown_name

log = logging.getLogger(__name__)

_DIFFERENT_LOSS = "different-loss"
_FINDINGS = "findings"
VERDICTS: Mapping[str, Verdict] = {
    verdict.lower(): verdict for verdict in Verdict if verdict is not Verdict.INCOMPARABLE
}
"""Condition to the verdict that meets it; runs that cannot be compared exit with 5 in any case."""
CONDITIONS = (*VERDICTS, _DIFFERENT_LOSS, _FINDINGS)
_LOSS_CHECKS = ("loss_parity", "loss_drift", "nan_loss")

Comparisons = Sequence[ComparisonRecord]


def read_conditions(given: Iterable[str]) -> tuple[str, ...]:
    """Conditions as typed, each text one or several with commas between, in the order of `CONDITIONS`.

    Raises:
        UsageError: one that does not exist.
    """
    words = {word.strip().lower().replace("_", "-") for text in given for word in text.split(",")}
    for word in sorted(words - set(CONDITIONS)):
        raise unknown_name(f"--fail-on {word!r}: no such condition", word, CONDITIONS, "There are")
    return tuple(condition for condition in CONDITIONS if condition in words)


def judge(
    conditions: Sequence[str],
    strict: bool,
    comparisons: Comparisons,
    findings: Sequence[Finding],
    result: Mapping[str, object],
) -> None:
    """Ends the command where a condition is met.

    Args:
        conditions: of `CONDITIONS`.
        strict: refuse findings that are more than information.
        comparisons: the candidates against their baselines.
        findings: of the checks.
        result: what `analyze --json` or `compare --json` prints; the error keeps it.

    Raises:
        UsageError: a verdict or a loss is asked about, and nothing was compared.
        GateFailed: naming every condition that is met, the arm, and its verdict with the interval.
        ChecksFailed: under `strict`, naming the checks.
    """
    of_comparisons = [condition for condition in conditions if condition != _FINDINGS]
    if of_comparisons and not comparisons:
        raise UsageError(
            f"--fail-on {','.join(of_comparisons)}: nothing was compared, there is one arm only",
            "Name runs of two arms, or what to compare with: --against FILE.",
        )
    serious = [finding for finding in findings if finding.severity != "info"]
    met = [
        f"--fail-on {condition}: {text}" for condition in conditions for text in _met(condition, comparisons, serious)
    ]
    if met:
        run = result.get("run")
        folder = run.get("path") if isinstance(run, Mapping) else comparisons[0].path if comparisons else None
        raise GateFailed("; ".join(met), f"The whole result is in {folder}." if folder else "", result=result)
    if strict and serious:
        raise ChecksFailed(_named(serious), serious[0].hint, result=result)


def _named(findings: Sequence[Finding]) -> str:
    named = ", ".join(dict.fromkeys(finding.id for finding in findings))
    return f"{len(findings)} finding{'s' if len(findings) > 1 else ''} of checks: {named}"


def _met(condition: str, comparisons: Comparisons, serious: Sequence[Finding]) -> Iterator[str]:
    if condition == _FINDINGS:
        if serious:
            yield _named(serious)
    elif condition == _DIFFERENT_LOSS:
        for finding in serious:
            if finding.id in _LOSS_CHECKS:
                yield f"{finding.seen} (limit: {finding.limit})"
    else:
        several = len({item.id for item in comparisons}) > 1
        for item in comparisons:
            if item.verdict == VERDICTS[condition]:
                where = f"in {item.id}, " if several else ""
                yield f"{where}{item.candidate} is {VERDICTS[condition]}: {item.reason}"
