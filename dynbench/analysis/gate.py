"""The conditions of `--fail-on`: what in a finished result ends the command with exit code 6, for use in CI."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dynbench.analysis.checks import require_clean
from dynbench.analysis.questions import question_named
from dynbench.analysis.record import ComparisonRecord, Finding
from dynbench.analysis.verdict import Verdict
from dynbench.errors import ChecksFailed, GateFailed, UsageError, did_you_mean

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
        raise UsageError(
            f"--fail-on {word!r}: no such condition. {did_you_mean(word, CONDITIONS)}".rstrip(),
            f"There are: {', '.join(CONDITIONS)}.",
        )
    return tuple(condition for condition in CONDITIONS if condition in words)


def judge(
    conditions: Sequence[str],
    strict: bool,
    comparisons: Comparisons,
    findings: Sequence[Finding],
    result: Mapping[str, object],
) -> None:
    """Ends the command where a condition is met; one that could not be judged is warned about.

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
    asked = [condition for condition in conditions if condition != _FINDINGS]
    if asked and not comparisons:
        raise UsageError(
            f"--fail-on {','.join(asked)}: nothing was compared, there is one arm only",
            "Name runs of two arms, or what to compare with: --against FILE.",
        )
    met = [
        f"--fail-on {condition}: {text}" for condition in conditions for text in _met(condition, comparisons, findings)
    ]
    if met:
        run = result.get("run")
        folder = run.get("path") if isinstance(run, Mapping) else comparisons[0].path if comparisons else None
        raise GateFailed("; ".join(met), f"The whole result is in {folder}." if folder else "", result=result)
    _tell_unjudged(conditions, comparisons, findings)
    if strict:
        require_clean(findings, result)


def _met(condition: str, comparisons: Comparisons, findings: Sequence[Finding]) -> Iterator[str]:
    if condition == _FINDINGS:
        try:
            require_clean(findings)
        except ChecksFailed as failed:
            yield failed.message
    elif condition == _DIFFERENT_LOSS:
        for finding in findings:
            if finding.id in _LOSS_CHECKS and finding.severity != "info":
                yield f"{finding.seen} (limit: {finding.limit})"
    else:
        several = len({item.id for item in comparisons}) > 1
        for item in comparisons:
            if item.verdict == VERDICTS[condition]:
                where = f"in {item.id}, " if several else ""
                yield f"{where}{item.candidate} is {VERDICTS[condition]}: {item.reason}"


def _tell_unjudged(conditions: Sequence[str], comparisons: Comparisons, findings: Sequence[Finding]) -> None:
    """Says what passed only because nothing is known of it."""
    verdicts = [condition for condition in conditions if condition in VERDICTS]
    for item in comparisons:
        pair = f"{item.candidate} against {item.baseline}"
        if verdicts and item.verdict == Verdict.ESTIMATE:
            log.warning(
                "--fail-on %s: %s is an ESTIMATE, one paired launch has no interval and meets no condition but "
                "estimate; launch each arm at least twice",
                ",".join(verdicts),
                pair,
            )
        required = question_named(item.question).loss_drift is None
        if _DIFFERENT_LOSS in conditions and required and item.loss_max_rel_diff is None:
            why = (
                f"losses are compared at level step only, and this is level {item.level}"
                if item.level != "step"
                else "its losses depend on who runs which samples (batch normalisation), or are not finite"
            )
            log.warning("--fail-on %s: %s, %s", _DIFFERENT_LOSS, pair, why)
    for finding in findings if _DIFFERENT_LOSS in conditions else ():
        if finding.id in _LOSS_CHECKS:
            log.warning("--fail-on %s: not met by %s (limit: %s)", _DIFFERENT_LOSS, finding.seen, finding.limit)
