"""`dynbench sync`: the strategies, listed, and checked against one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dynbench.cli.options import Settings, common_options, table_option
from dynbench.cli.output import answered, print_result
from dynbench.cli.plugins import show_kinds

if TYPE_CHECKING:
    from dynbench.engine.launching.toy_ranks import Checked


@click.group()
def command() -> None:
    """List the strategies of `train --sync`, and check that they train what one process does."""


@command.command("ls", epilog="Example: dynbench sync ls")
@table_option
@common_options
def list_strategies(settings: Settings) -> None:
    """All strategies, with their options."""
    show_kinds(settings, "sync ls", ["strategies"])


@command.command("check", epilog="\b\nExamples:\n  dynbench sync check\n  dynbench sync check bucketed --ranks 4")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks that train.")
@table_option
@common_options
def check(settings: Settings, names: tuple[str, ...], ranks: int) -> None:
    """Train a toy on random data with the strategies NAME, or all, and compare its weights with one process's.

    The ranks are processes on this machine's CPU. Exact strategies differ by rounding in double precision alone; one
    that differs by more makes the command end with exit code 6.
    """
    from dynbench.cli.console import working
    from dynbench.engine.launching.toy_ranks import check_strategies
    from dynbench.errors import ChecksFailed
    from dynbench.plugins import STRATEGIES

    found: list[Checked] = []
    asked = list(dict.fromkeys(names)) or list(STRATEGIES)
    with working(settings.shows_progress, "sync check") as report:
        for checked in check_strategies(asked, ranks):
            found.append(checked)
            report(f"{checked.strategy}, {checked.optimizer}")
    rows = [asdict(each) for each in found]
    if failed := list(dict.fromkeys(each.strategy for each in found if not each.passed)):
        if not settings.as_json:
            _show(found)
        raise ChecksFailed(
            f"sync check: {', '.join(failed)} trained other weights than one process",
            "This is a bug of the strategy.",
            result={"schema_version": 1, "command": "sync check", "checked": rows},
        )
    short = [f"{each.strategy} {each.optimizer} {each.difference:.3g}" for each in found]
    if not answered(settings, "sync check", {"checked": rows}, short):
        _show(found)


def _show(found: Sequence[Checked]) -> None:
    words = {True: "yes", False: "no"}
    cells = [
        (c.strategy, c.optimizer, c.ranks, f"{c.difference:.3g}", c.tensor, words[c.exact], words[c.passed])
        for c in found
    ]
    headers = ("strategy", "optimizer", "ranks", "largest difference", "of", "exact", "passed")
    print_result(headers, cells, [asdict(each) for each in found])
