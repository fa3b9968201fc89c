"""`--strict` and `--fail-on`: a finished result that ends the command with exit code 6."""

from __future__ import annotations

from collections.abc import Callable

import click


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
        help="What is compared: schedule, sync, compress, precision, scaling, levers (several at once), steps (packing "
        "or fewer), topology (all-reduce or server).  "
        "[default: found from what the arms differ in]",
    )(function)
