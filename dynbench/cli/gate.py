"""`--strict` and `--fail-on`: a finished result that ends the command with exit code 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynbench.analysis.finding import Finding
    from dynbench.analysis.record import ComparisonRecord


def gate_options(function: Callable[..., object]) -> Callable[..., object]:
    """`--strict --fail-on`; the callback receives `strict` and `fail_on`."""
    function = click.option(
        "--fail-on",
        multiple=True,
        metavar="CONDITION,...",
        help="Exit 6 on a verdict (slower, faster, same, ambiguous, estimate), different-loss, or findings.",
    )(function)
    return click.option("--strict", is_flag=True, help="Exit 6 when a check finds more than information.")(function)


def question_option(function: Callable[..., object]) -> Callable[..., object]:
    """`--question`; the callback receives `question`."""
    return click.option(
        "--question",
        metavar="NAME",
        help="What is compared: schedule, sync, compress, precision, scaling, levers (several at once).  "
        "[default: found from what the arms differ in]",
    )(function)


def judge(
    conditions: Sequence[str],
    strict: bool,
    comparisons: Sequence[ComparisonRecord],
    findings: Sequence[Finding],
    result: Mapping[str, object],
) -> None:
    """Ends the command where a condition is met, with the whole result beside the error.

    Args:
        conditions: as `gate.read_conditions` gives them.
        strict: refuse findings that are more than information.
        comparisons: the candidates against their baselines.
        findings: of the checks.
        result: what the command prints under `--json`.

    Raises:
        GateFailed, ChecksFailed: a condition is met, or the checks found something under `--strict`.
        UsageError: a condition about a comparison, and nothing was compared.
    """
    from dynbench.analysis.checks import require_clean
    from dynbench.analysis.gate import require_none_of

    require_none_of(conditions, comparisons, findings, result)
    if strict:
        require_clean(findings, result)
